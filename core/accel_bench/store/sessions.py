"""Conversion of sessions to rows of the store, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.documents.canonical import canonical_json
from accel_bench.documents.redaction import Redactor
from accel_bench.store.rows import Columns, intact, with_checksum

REPEATED = "repeated_sessions"
"""Key in a session's document for the session ids in the bundle that it repeats."""


class SessionRecord(Frozen):
    """Record of a session, one `accel-bench run`; only runs of one session are paired."""

    id: str

    started_at: str
    """Start time: UTC, ISO 8601."""

    scenario: str
    """Name of the scenario, or of the folder of scenarios."""

    command: tuple[str, ...] = ()
    """Command-line arguments of the session."""

    document: dict[str, JsonValue] = Field(default_factory=dict)
    """Plan of the session: resolved scenario file, order of the rounds, skipped points."""

    @property
    def imported(self) -> bool:
        """True if another program measured the session's runs."""
        return "imported" in self.document

    @property
    def baseline(self) -> str:
        """Name of the stack that the others are compared with."""
        file = self.document.get("scenario")
        file = file if isinstance(file, dict) else {}
        stacks = file.get("stacks")
        names = list(stacks) if isinstance(stacks, dict) else []
        named = file.get("baseline")
        if isinstance(named, str) and named:
            return named
        return "baseline" if "baseline" in names or not names else names[0]


def session_columns(session: SessionRecord) -> Columns:
    """Return the row of a session, without secrets and with its checksum."""
    redactor = Redactor.of_this_process()
    return with_checksum(
        {
            "id": session.id,
            "started_at": session.started_at,
            "scenario": redactor.redact(session.scenario),
            "command": canonical_json(redactor.redact_arguments(session.command)),
            "document": canonical_json(redactor.redact_value(session.document)),
        }
    )


def to_session(columns: Mapping[str, Any]) -> SessionRecord | None:
    """Return the session of a row, or None for a damaged or unreadable row."""
    if not intact(columns):
        return None
    try:
        return SessionRecord(
            id=columns["id"],
            started_at=columns["started_at"],
            scenario=columns["scenario"],
            command=tuple(json.loads(columns["command"])),
            document=json.loads(columns["document"]),
        )
    except (TypeError, ValueError, RecursionError):
        return None

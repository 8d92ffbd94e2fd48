"""Convert sessions and results to columns of the store, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.documents.canonical import canonical_json, digest
from accel_bench.documents.redaction import SPOILED, Redactor
from accel_bench.errors import StoreError
from accel_bench.result import Result

Columns = dict[str, Any]
"""A row of a table by column name."""

SHA256_DIGITS = 64
"""Hex digits of a whole checksum."""


class SessionRecord(Frozen):
    """One `accel-bench run`: only runs of one session are paired."""

    id: str

    started_at: str
    """UTC time, ISO 8601."""

    scenario: str
    """Name of the scenario, or of the folder of scenarios."""

    command: tuple[str, ...] = ()
    """Arguments that the session was started with."""

    document: dict[str, JsonValue] = Field(default_factory=dict)
    """What the plan was: the text of the resolved scenario file, the order of the rounds."""


@dataclass(frozen=True)
class Row:
    """The columns of a run that a listing shows; of a corrupt row what can still be read."""

    run_id: str
    session: str
    experiment_id: str
    scenario: str
    stack: str
    sweep: dict[str, JsonValue]
    round: int
    position: int
    attempt: int

    status: str
    """How it ended, or `corrupt`."""

    started_at: str
    """UTC time, ISO 8601."""

    corrupt: bool
    """Whether the row's content does not fit its checksum."""


def redact_result(result: Result) -> Result:
    """Return the result without secrets of this process and of its scenario. Raises StoreError.

    What is stored must be readable again: a secret variable whose value is a word of the schema
    would spoil that, so it is reported here and not when the row is read.
    """
    redactor = Redactor.of_this_process(result.experiment.scenario.environment)
    payload = redactor.redact_value(result.model_dump(mode="json"))
    payload["command"] = redactor.redact_arguments(result.command)
    try:
        return Result.model_validate_json(canonical_json(payload))
    except ValueError as error:
        raise StoreError(
            f"run {result.run_id!r} cannot be stored, since {SPOILED}: {error}"
        ) from error


def run_columns(stored: Result) -> Columns:
    """Return the columns of a redacted result with their checksum."""
    return _with_checksum(
        {
            "run_id": stored.run_id,
            "session": stored.session,
            "experiment_id": stored.experiment.id,
            "scenario": stored.experiment.scenario.name,
            "stack": stored.experiment.stack.name,
            "sweep": canonical_json(stored.experiment.sweep),
            "round": stored.round,
            "position": stored.position,
            "attempt": stored.attempt,
            "status": stored.status.value,
            "started_at": stored.started_at,
            "payload": canonical_json(stored.model_dump(mode="json")),
            "schema_version": stored.schema_version,
        }
    )


def session_columns(session: SessionRecord) -> Columns:
    """Return the columns of a session, without secrets and with their checksum."""
    redactor = Redactor.of_this_process()
    return _with_checksum(
        {
            "id": session.id,
            "started_at": session.started_at,
            "scenario": redactor.redact(session.scenario),
            "command": canonical_json(redactor.redact_arguments(session.command)),
            "document": canonical_json(redactor.redact_value(session.document)),
        }
    )


def _with_checksum(columns: Columns) -> Columns:
    return {**columns, "checksum": digest(columns, SHA256_DIGITS)}


def intact(columns: Mapping[str, Any]) -> bool:
    """Return whether the columns match their checksum."""
    content = {name: value for name, value in columns.items() if name != "checksum"}
    try:
        return bool(digest(content, SHA256_DIGITS) == columns["checksum"])
    except (TypeError, ValueError):
        # A flipped bit can also turn a column into bytes or NaN, which JSON does not have.
        return False


def to_row(columns: Mapping[str, Any]) -> Row:
    """Return the listing of a run; the columns of a corrupt one may hold anything."""
    corrupt = not intact(columns)
    return Row(
        run_id=_text(columns["run_id"]),
        session=_text(columns["session"]),
        experiment_id=_text(columns["experiment_id"]),
        scenario=_text(columns["scenario"]),
        stack=_text(columns["stack"]),
        sweep=_mapping(columns["sweep"]),
        round=_number(columns["round"]),
        position=_number(columns["position"]),
        attempt=_number(columns["attempt"]),
        status="corrupt" if corrupt else columns["status"],
        started_at=_text(columns["started_at"]),
        corrupt=corrupt,
    )


def to_result(columns: Mapping[str, Any]) -> Result:
    """Return the result of an intact row. Raises StoreError when this version cannot read it."""
    try:
        return Result.model_validate_json(columns["payload"])
    except ValueError as error:
        raise StoreError(
            f"run {columns['run_id']!r} is intact, but this version of accel-bench cannot read it "
            f"(schema version {columns['schema_version']}): {error}"
        ) from error


def to_session(columns: Mapping[str, Any]) -> SessionRecord:
    """Return the session of an intact row."""
    return SessionRecord(
        id=columns["id"],
        started_at=columns["started_at"],
        scenario=columns["scenario"],
        command=tuple(json.loads(columns["command"])),
        document=json.loads(columns["document"]),
    )


def chronological_key(columns: Mapping[str, Any]) -> tuple[str, int, int, int, str]:
    """Return the key by which runs are sorted outside the database."""
    row = to_row(columns)
    return row.started_at, row.round, row.position, row.attempt, row.run_id


def _text(value: Any) -> str:
    # A damaged column may hold another type, or bytes that are not UTF-8.
    return str(value).encode("utf8", "replace").decode()


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _mapping(value: Any) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except (TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}

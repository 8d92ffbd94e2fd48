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
from accel_bench.store.schema import MAXIMUM_PAYLOAD_BYTES

Columns = dict[str, Any]
"""A row of a table by column name."""

SHA256_DIGITS = 64
"""Hex digits of a whole checksum."""

MAXIMUM_NUMBER = 1e100
MAXIMUM_DIGITS = 40
"""Size and length of the largest number of a result."""


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

    problem: str = ""
    """Why the row cannot be believed or read; empty where it can."""

    @property
    def corrupt(self) -> bool:
        """Whether the row cannot be believed or read."""
        return bool(self.problem)


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
    try:
        to_result(columns)
        status, problem = _text(columns["status"]), ""
    except StoreError as error:
        status, problem = "corrupt", str(error)
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
        status=status,
        started_at=_text(columns["started_at"]),
        problem=problem,
    )


def to_result(columns: Mapping[str, Any]) -> Result:
    """Return the result of a row. Raises StoreError for one that is damaged or cannot be read."""
    run_id = _text(columns["run_id"])
    if columns["payload"] is None:
        raise StoreError(f"{run_id}: corrupt, larger than {MAXIMUM_PAYLOAD_BYTES} bytes")
    if not intact(columns):
        raise StoreError(
            f"{run_id}: corrupt, the content does not fit its checksum; run the experiment again"
        )
    try:
        result = Result.model_validate_json(columns["payload"])
        _check_numbers(columns["payload"])
    except ValueError as error:
        raise StoreError(
            f"run {run_id!r} is intact, but this version of accel-bench cannot read it "
            f"(schema version {columns['schema_version']}): {error}"
        ) from error
    return result


def readable(columns: Mapping[str, Any]) -> Result | None:
    """Return the result of a row, or None for one that is damaged or cannot be read."""
    try:
        return to_result(columns)
    except StoreError:
        return None


def to_session(columns: Mapping[str, Any]) -> SessionRecord | None:
    """Return the session of a row, or None for one that is damaged or cannot be read."""
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


def _check_numbers(payload: str) -> None:
    """Refuse numbers that nothing can be computed with. Raises ValueError.

    Free-form parts of a result, such as evidence and sweeps, can hold any number that JSON has.
    """
    json.loads(payload, parse_int=_limited, parse_float=_limited, parse_constant=_limited)


def _limited(number: str) -> float:
    if len(number) > MAXIMUM_DIGITS or not abs(float(number)) < MAXIMUM_NUMBER:
        raise ValueError(f"the number {number[:30]} is beyond what can be computed with")
    return float(number)


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
    except (TypeError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}

"""Rows of tables: their checksums, and the values that a list shows of a run, even of a bad row."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from accel_bench.analysis.metrics.throughput import RunThroughput
from accel_bench.documents.base import JsonValue
from accel_bench.documents.canonical import digest
from accel_bench.scenario.uses import TOKENS
from accel_bench.store.fields import FIGURES_VERSION
from accel_bench.store.schema import (
    COUNTS,
    EXPORTED,
    FORMAT,
    IMPORTED,
    MAXIMUM_PAYLOAD_BYTES,
    ORIGIN,
)

Columns = dict[str, Any]
"""Row of a table, by column name."""

SHA256_DIGITS = 64
"""Number of hex digits in a whole checksum."""


class ListedRun(NamedTuple):
    """A run in a list of runs; for a corrupt row, with the values that can still be read."""

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
    """Status of the run, or `corrupt`."""

    started_at: str
    """Start time: UTC, ISO 8601."""

    tag: str | None = None
    """Name of the sweep point."""

    audited_status: str | None = None
    """Status after the self-audit: `degraded` for a completed run with broken invariants."""

    tokens_per_second: float | None = None
    """Real tokens of all ranks per second, or the imported file's value; null if unknown."""

    samples_per_second: float | None = None
    """Samples of all ranks per second, or the imported file's value; null if unknown."""

    steps_per_second: float | None = None
    """Optimizer steps per second, or the imported file's value; null if unknown."""

    broken: tuple[tuple[str, str], ...] | None = None
    """Invariants that this version's self-audit finds broken, with the figures; null for a run that
    must be audited anew."""

    problem: str = ""
    """Reason why the row is corrupt; empty for an intact row."""

    provenance: str | None = None
    """`measured`, `exported`, or `imported` with the format; null for a corrupt row."""

    counts: str = TOKENS
    """Plural noun for the counted elements, such as `images`."""

    @property
    def imported(self) -> bool:
        """True if another program measured the run."""
        return self.audited_status == IMPORTED

    @property
    def corrupt(self) -> bool:
        """True if the row is damaged."""
        return bool(self.problem)


def content_checksum(document: bytes, samples: bytes) -> str:
    """Return the checksum of a run's document and samples."""
    return hashlib.sha256(document + samples).hexdigest()


def with_checksum(columns: Columns) -> Columns:
    """Return all columns of a row sorted by name, followed by their checksum."""
    ordered = dict(sorted(columns.items()))
    return {**ordered, "checksum": _checksum([*ordered.values()])}


def _checksum(values: list[Any]) -> str:
    # A value's place is its name: texts of names would double the time.
    return digest(values, SHA256_DIGITS)


def intact(columns: Mapping[str, Any]) -> bool:
    """Return whether a row matches its checksum, and its document and samples match their checksum.

    The columns must be in the order of `schema.within_limits`. Columns behind `checksum`, such as
    computed ones, are ignored.
    """
    values, checksum = [*columns.values()], columns["checksum"]
    try:
        if _checksum(values[: values.index(checksum)]) != checksum:
            return False
    except (TypeError, ValueError):
        # A flipped bit can also turn a column into bytes or NaN, which JSON does not have.
        return False
    contents = [columns[name] for name in ("result", "samples") if name in columns]
    return not contents or content_checksum(*contents) == columns["content_checksum"]


def problem_of(columns: Mapping[str, Any]) -> str:
    """Return the reason why a run is corrupt, or an empty text for an intact run."""
    run_id = text_of(columns["run_id"])
    if None in (columns.get("result"), columns.get("samples")):
        return f"{run_id}: corrupt, larger than {MAXIMUM_PAYLOAD_BYTES} bytes or without a document"
    if not intact(columns):
        return f"{run_id}: corrupt, the content does not fit its checksum; run the experiment again"
    return ""


def to_row(columns: Mapping[str, Any], problem: str) -> ListedRun:
    """Return a run's list entry; `problem` says why its row is corrupt, empty for an intact row."""
    return ListedRun(
        run_id=text_of(columns["run_id"]),
        session=text_of(columns["session"]),
        experiment_id=text_of(columns["experiment_id"]),
        scenario=text_of(columns["scenario"]),
        stack=text_of(columns["stack"]),
        sweep=_mapping(columns["sweep"]),
        round=_number(columns["round"]),
        position=_number(columns["position"]),
        attempt=_number(columns["attempt"]),
        status="corrupt" if problem else text_of(columns["status"]),
        started_at=text_of(columns["started_at"]),
        problem=problem,
        counts=counted(columns["options"]),
        **({} if problem else _columns_of_intact(columns)),
    )


def _columns_of_intact(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return those values of a run's list entry, by name, that only an intact row provides."""
    rates = _rates(columns)
    if columns["audited_status"] == IMPORTED:
        stated = _mapping(columns["metrics"])
        rates = {name: _real(stated.get(name)) for name in rates}
    texts = {name: columns[name] for name in ("tag", "audited_status")}
    return {
        **rates,
        **{name: None if text is None else text_of(text) for name, text in texts.items()},
        "broken": stored_audit(columns),
        "provenance": provenance_of(columns),
    }


def _rates(columns: Mapping[str, Any]) -> dict[str, float | None]:
    """Return tokens, samples and steps per second of a run, from the stored rate of tokens."""
    speed, tokens = _real(columns["tokens_per_second"]), _number(columns["real_tokens"])
    steps, batch = _number(columns["steps"]), _number(columns["train_global_batch_size"])
    rate = speed * steps / tokens if speed and steps and tokens else None
    return {
        "tokens_per_second": speed,
        "samples_per_second": rate * batch if rate and batch else None,
        "steps_per_second": rate,
    }


def provenance_of(columns: Mapping[str, Any]) -> str:
    """Return the origin of a run: `measured`, `exported`, or `imported` with the file's format."""
    options = _mapping(columns["options"])
    if columns["audited_status"] == IMPORTED:
        return f"{IMPORTED} {text_of(options.get(FORMAT, ''))}".rstrip()
    return EXPORTED if options.get(ORIGIN) == EXPORTED else "measured"


def origin_of(columns: Mapping[str, Any]) -> str:
    """Return the origin of a run: `measured`, `exported` or `imported`."""
    return provenance_of(columns).partition(" ")[0]


def counted(options: Any) -> str:
    """Return the plural noun for a run's counted elements, such as `tokens`, from its options."""
    noun = _mapping(options).get(COUNTS)
    return noun if isinstance(noun, str) else TOKENS


def stored_audit(columns: Mapping[str, Any]) -> tuple[tuple[str, str], ...] | None:
    """Return name and figures of each invariant that a run's stored audit found broken. The result
    is None if the audit is unreadable or was made by another version of the audit."""
    if columns["figures_version"] != FIGURES_VERSION:
        return None
    try:
        return tuple((str(name), str(figures)) for name, figures in json.loads(columns["broken"]))
    except (TypeError, ValueError, RecursionError):
        return None


def stored_throughput(columns: Mapping[str, Any]) -> RunThroughput | None:
    """Return the stored throughput of a run that passed this version's self-audit; None for any
    other run, whose samples must be read."""
    stored = _mapping(columns["throughput"]) if stored_audit(columns) == () else {}
    whole: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()
    }
    try:
        return RunThroughput(**whole)
    except TypeError:
        return None


def chronological_key(columns: Mapping[str, Any]) -> tuple[str, int, int, int, str]:
    """Return the key that sorts runs by start, round, position, attempt and id."""
    row = to_row(columns, "not looked at")
    return row.started_at, row.round, row.position, row.attempt, row.run_id


def text_of(value: Any) -> str:
    """Return a column's value as text, whatever type a damaged row holds."""
    # A damaged column may hold another type, or bytes that are not UTF-8.
    return str(value).encode("utf8", "replace").decode()


def _real(value: Any) -> float | None:
    return value if isinstance(value, float) else None


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _mapping(value: Any) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
    except (TypeError, ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}

"""Convert sessions and results to columns of the store, and back."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from typing import Any, NamedTuple

from pydantic import Field, TypeAdapter
from sqlalchemy import Connection, insert

from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.documents.canonical import canonical_json, digest
from accel_bench.documents.redaction import SPOILED, Redactor
from accel_bench.errors import ResultTooLargeError, StoreError
from accel_bench.result import RankResult, Result, Sample
from accel_bench.scenario.uses import CALLS, TOKENS
from accel_bench.store.fields import FIGURES_VERSION, derived_columns
from accel_bench.store.schema import (
    COUNTS,
    DOCUMENTS,
    EXPORTED,
    IMPORTED,
    MAXIMUM_COLUMN_BYTES,
    MAXIMUM_PAYLOAD_BYTES,
    OPERATION,
    ORIGIN,
    RUNS,
    SAMPLES,
)

Columns = dict[str, Any]
"""A row of a table by column name."""

SHA256_DIGITS = 64
"""Hex digits of a whole checksum."""

MAXIMUM_NUMBER = 1e100
MAXIMUM_DIGITS = 40
"""Size and length of the largest number of a result."""

NUMBER_SHAPES = bytes.maketrans(b".0123456789E", b"11111111111e")
SUSPICIOUS = (b"1" * (MAXIMUM_DIGITS + 1), b"e11", b"NaN", b"Infinity")
"""What stands in a JSON text with a number beyond these limits, and seldom in another, where all
digits are written as 1, all exponents as e, and no plus sign."""

COMPRESSION = 6
"""Level of zlib."""

CONTENTS = ("result", "samples")
"""What is stored of a run beside its columns, by the names that `schema.reading` gives them."""

WINDOW_PARTS = ("samples", "discarded", "warmup")
"""Parts of a window that are samples."""


class WindowSamples(Frozen):
    """The samples of one rank's window, as they are stored."""

    samples: tuple[Sample, ...]
    discarded: tuple[Sample, ...]
    warmup: tuple[Sample, ...]


@cache
def _windows_adapter() -> TypeAdapter[list[WindowSamples | None]]:
    return TypeAdapter(list[WindowSamples | None])


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
    """What the plan was: the resolved scenario file, the order of the rounds, what is skipped."""

    @property
    def imported(self) -> bool:
        """Whether its runs are those of another program."""
        return "imported" in self.document

    @property
    def baseline(self) -> str:
        """The stack with which its others are compared."""
        file = self.document.get("scenario")
        file = file if isinstance(file, dict) else {}
        stacks = file.get("stacks")
        names = list(stacks) if isinstance(stacks, dict) else []
        named = file.get("baseline")
        if isinstance(named, str) and named:
            return named
        return "baseline" if "baseline" in names or not names else names[0]


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

    tag: str | None = None
    """Name of the sweep point."""

    audited_status: str | None = None
    """`degraded` where the self-audit finds something in a completed run, else the status."""

    tokens_per_second: float | None = None
    """Real tokens of all ranks per second, of an imported run what its file states; null where that
    is not known."""

    samples_per_second: float | None = None
    """Samples of all ranks per second, likewise."""

    steps_per_second: float | None = None
    """Optimizer steps per second, likewise."""

    broken: tuple[tuple[str, str], ...] | None = None
    """Invariants that the self-audit of this version finds broken, with the figures; null for a run
    that must be audited anew."""

    problem: str = ""
    """Why the row cannot be believed; empty where it can."""

    imported_from: str = ""
    """Format of the file that it was imported from."""

    exported: bool = False
    """Whether it came with an export of another store."""

    counts: str = TOKENS
    """What is counted as tokens, such as `images`."""

    @property
    def imported(self) -> bool:
        """Whether another program measured it."""
        return self.audited_status == IMPORTED

    @property
    def provenance(self) -> str | None:
        """`measured`, `exported`, or `imported` with the format; null where the row cannot be
        believed."""
        if self.corrupt:
            return None
        if self.imported:
            return f"{IMPORTED} {self.imported_from}".rstrip()
        return EXPORTED if self.exported else "measured"

    @property
    def corrupt(self) -> bool:
        """Whether the row cannot be believed."""
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


class RunRecord(NamedTuple):
    """A result as it is stored."""

    columns: Columns
    """Its row of `runs`."""

    document: bytes
    """The result without samples, as compressed JSON."""

    samples: bytes
    """The samples, as compressed JSON."""


def run_record(stored: Result) -> RunRecord:
    """Return what is stored of a redacted result, with its checksums."""
    payload = stored.model_dump(mode="json")
    windows = [_detach_samples(rank["window"]) for rank in payload["ranks"]]
    texts = [canonical_json(part).encode() for part in (payload, windows)]
    if sum(map(len, texts)) > MAXIMUM_PAYLOAD_BYTES:
        raise too_large(stored.run_id, MAXIMUM_PAYLOAD_BYTES)
    document, samples = (zlib.compress(text, COMPRESSION) for text in texts)
    columns = with_checksum(
        {
            **identity_columns(stored),
            **derived_columns(stored),
            "content_checksum": content_checksum(document, samples),
        }
    )
    longest = max(len(value) for value in columns.values() if isinstance(value, str))
    if longest > MAXIMUM_COLUMN_BYTES:
        raise too_large(stored.run_id, MAXIMUM_COLUMN_BYTES)
    return RunRecord(columns, document, samples)


def insert_run(connection: Connection, record: RunRecord) -> None:
    """Insert what is stored of a result."""
    connection.execute(insert(RUNS), record.columns)
    run_id = record.columns["run_id"]
    connection.execute(insert(DOCUMENTS), {"run_id": run_id, "content": record.document})
    connection.execute(insert(SAMPLES), {"run_id": run_id, "content": record.samples})


def label_columns(run_id: str, kind: str, text: str) -> Columns:
    """Return the columns of a tag or a note that is given now."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"run_id": run_id, "kind": kind, "text": text, "added_at": now}


def identity_columns(stored: Result) -> Columns:
    """Return the columns of a result that say which run it is."""
    return {
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
        "schema_version": stored.schema_version,
    }


def too_large(run_id: str, limit: int) -> ResultTooLargeError:
    """Return the error for a result that could not be read again."""
    return ResultTooLargeError(
        f"run {run_id!r} is larger than {limit} bytes, the limit of a stored run; measure fewer "
        "steps, or let plugins report less evidence"
    )


def content_checksum(document: bytes, samples: bytes) -> str:
    """Return the checksum of what is stored of a run beside its columns."""
    return hashlib.sha256(document + samples).hexdigest()


def _detach_samples(window: dict[str, Any] | None) -> dict[str, Any] | None:
    """Take the samples out of a window and return them."""
    if window is None:
        return None
    return {part: window.pop(part) for part in WINDOW_PARTS}


def session_columns(session: SessionRecord) -> Columns:
    """Return the columns of a session, without secrets and with their checksum."""
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


def with_checksum(columns: Columns) -> Columns:
    """Return the columns with their checksum; columns that are null are no part of it."""
    return {**columns, "checksum": _checksum(columns)}


def _checksum(columns: Mapping[str, Any]) -> str:
    # Columns that a later version adds are null in rows of this one.
    known = {name: value for name, value in columns.items() if value is not None}
    return digest(known, SHA256_DIGITS)


def intact(columns: Mapping[str, Any]) -> bool:
    """Return whether the columns match their checksum, and the content of a run its own."""
    own = dict(columns)
    checksum, *contents = (own.pop(name, None) for name in ("checksum", *CONTENTS))
    try:
        if _checksum(own) != checksum:
            return False
    except (TypeError, ValueError):
        # A flipped bit can also turn a column into bytes or NaN, which JSON does not have.
        return False
    return contents == [None, None] or content_checksum(*contents) == columns["content_checksum"]


def problem_of(columns: Mapping[str, Any]) -> str:
    """Return why a run cannot be believed; empty where it can."""
    run_id = _text(columns["run_id"])
    if any(columns.get(name) is None for name in CONTENTS):
        return f"{run_id}: corrupt, larger than {MAXIMUM_PAYLOAD_BYTES} bytes or without a document"
    if not intact(columns):
        return f"{run_id}: corrupt, the content does not fit its checksum; run the experiment again"
    return ""


def to_row(columns: Mapping[str, Any]) -> Row:
    """Return the listing of a run; the columns of a corrupt one may hold anything."""
    problem = problem_of(columns)
    rates, form = _rates(columns), ""
    if columns["audited_status"] == IMPORTED:
        stated = _mapping(columns["metrics"])
        rates = {name: _real(stated.get(name)) for name in rates}
        form = _text(_mapping(columns["options"]).get("provenance.format", ""))
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
        status="corrupt" if problem else _text(columns["status"]),
        started_at=_text(columns["started_at"]),
        tag=None if problem else _optional_text(columns["tag"]),
        audited_status=None if problem else _optional_text(columns["audited_status"]),
        **({} if problem else rates),
        broken=None if problem else _broken(columns),
        problem=problem,
        imported_from=form,
        exported=is_exported(columns["options"]),
        counts=counted(columns["options"]),
    )


def _rates(columns: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the rates of a run: columns hold that of tokens, from which the others follow."""
    speed, tokens = _real(columns["tokens_per_second"]), _number(columns["real_tokens"])
    steps, batch = _number(columns["steps"]), _number(columns["train_global_batch_size"])
    rate = speed * steps / tokens if speed and steps and tokens else None
    return {
        "tokens_per_second": speed,
        "samples_per_second": rate * batch if rate and batch else None,
        "steps_per_second": rate,
    }


def is_exported(options: Any) -> bool:
    """Return whether a run came with an export, by the text of its column `options`."""
    # Few rows are, and parsing the options of all would take as long as all the rest.
    there = isinstance(options, str) and ORIGIN in options
    return there and _mapping(options).get(ORIGIN) == EXPORTED


def counted(options: Any) -> str:
    """Return what a run counts as tokens, by the text of its column `options`."""
    if not isinstance(options, str):
        return TOKENS
    if found := COUNTS.search(options):
        return found[1]
    return CALLS if OPERATION in options else TOKENS


def to_result(columns: Mapping[str, Any]) -> Result:
    """Return the result of a row. Raises StoreError for one that is damaged or cannot be read."""
    if problem := problem_of(columns):
        raise StoreError(problem)
    try:
        document, samples = (_decompress(columns[name]) for name in CONTENTS)
        _check_numbers(samples)
        return _with_samples(parse_result(document), samples)
    except (ValueError, zlib.error, RecursionError) as error:
        raise StoreError(
            f"run {_text(columns['run_id'])!r} is intact, but this version of accel-bench cannot "
            f"read it (schema version {columns['schema_version']}): {error}"
        ) from error


def parse_result(payload: str) -> Result:
    """Return the result of a JSON text. Raises ValueError."""
    result = Result.model_validate_json(payload)
    _check_numbers(payload)
    return result


def _with_samples(result: Result, samples: str) -> Result:
    """Return the result with the samples of its windows; none stand apart of a row that was
    migrated as it was. Raises ValueError."""
    windows = _windows_adapter().validate_json(samples)
    if not windows:
        return result
    ranks = [_rank_with(rank, parts) for rank, parts in zip(result.ranks, windows, strict=True)]
    return result.model_copy(update={"ranks": tuple(ranks)})


def _rank_with(rank: RankResult, parts: WindowSamples | None) -> RankResult:
    if rank.window is None or parts is None:
        return rank
    window = rank.window.model_copy(update={name: getattr(parts, name) for name in WINDOW_PARTS})
    return rank.model_copy(update={"window": window})


def _decompress(content: bytes) -> str:
    """Return a text of limited size. Raises ValueError or zlib.error."""
    inflating = zlib.decompressobj()
    text = inflating.decompress(content, MAXIMUM_PAYLOAD_BYTES)
    if inflating.unconsumed_tail or not inflating.eof:
        raise ValueError(f"it is larger than {MAXIMUM_PAYLOAD_BYTES} bytes, or cut short")
    return text.decode()


def readable(columns: Mapping[str, Any]) -> Result | None:
    """Return the result of a row, or None for one that is damaged or cannot be read."""
    try:
        return to_result(columns)
    except StoreError:
        return None


def unreadable(columns: Mapping[str, Any]) -> str:
    """Return why a row cannot be read; empty where it can."""
    try:
        to_result(columns)
    except StoreError as error:
        return str(error)
    return ""


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
    shape = payload.encode().translate(NUMBER_SHAPES, b"+")
    if not any(sign in shape for sign in SUSPICIOUS):
        return
    json.loads(payload, parse_int=_limited, parse_float=_limited, parse_constant=_limited)


def _limited(number: str) -> float:
    if len(number) > MAXIMUM_DIGITS or not abs(float(number)) < MAXIMUM_NUMBER:
        raise ValueError(f"the number {number[:30]} is beyond what can be computed with")
    return float(number)


def _broken(columns: Mapping[str, Any]) -> tuple[tuple[str, str], ...] | None:
    """Return what the self-audit found; null where an earlier version's has."""
    if columns["figures_version"] != FIGURES_VERSION:
        return None
    if columns["broken"] == "[]":
        return ()
    try:
        return tuple((str(name), str(figures)) for name, figures in json.loads(columns["broken"]))
    except (TypeError, ValueError, RecursionError):
        return None


def chronological_key(columns: Mapping[str, Any]) -> tuple[str, int, int, int, str]:
    """Return the key by which runs are sorted outside the database."""
    row = to_row(columns)
    return row.started_at, row.round, row.position, row.attempt, row.run_id


def _text(value: Any) -> str:
    if isinstance(value, str) and value.isascii():
        return value
    # A damaged column may hold another type, or bytes that are not UTF-8.
    return str(value).encode("utf8", "replace").decode()


def _optional_text(value: Any) -> str | None:
    return None if value is None else _text(value)


def _real(value: Any) -> float | None:
    return value if isinstance(value, float) else None


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _mapping(value: Any) -> dict[str, Any]:
    if value == "{}":
        return {}
    try:
        found = json.loads(value)
    except (TypeError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}

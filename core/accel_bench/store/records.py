"""Conversion of results to rows of the store, and back."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeVar

from pydantic import TypeAdapter
from sqlalchemy import Connection, insert

from accel_bench.documents.base import Frozen
from accel_bench.documents.canonical import (
    MAXIMUM_DIGITS,
    MAXIMUM_NUMBER,
    canonical_json,
    unreadable_part,
)
from accel_bench.documents.redaction import SPOILED, Redactor
from accel_bench.errors import ResultTooLargeError, StoreError, UnreadableResultError
from accel_bench.result import Result, Sample
from accel_bench.scenario.experiment import Experiment
from accel_bench.store.fields import derived_columns
from accel_bench.store.rows import (
    Columns,
    content_checksum,
    problem_of,
    text_of,
    with_checksum,
)
from accel_bench.store.schema import (
    DOCUMENTS,
    MAXIMUM_COLUMN_BYTES,
    MAXIMUM_PAYLOAD_BYTES,
    RUNS,
    SAMPLES,
)

NUMBER_SHAPES = bytes.maketrans(b".0123456789E", b"11111111111e")
IN_NO_NUMBER = b"+_ghjklmopqrsuvwxz"
"""Characters that out-of-range numbers do not need; they are removed before the search for one."""

SUSPICIOUS = (b"1" * (MAXIMUM_DIGITS + 1), b"e11", b"NaN", b"Infinity")
"""Texts that reveal an out-of-range number, once digits are replaced by 1, exponents by e, and
IN_NO_NUMBER is removed."""

EXPERIMENT, BEHIND_EXPERIMENT = '"experiment":', ',"folder":"'
"""Texts before and after an experiment in the canonical JSON of a result."""

ModelT = TypeVar("ModelT", bound=Frozen)

COMPRESSION = 6
"""Compression level of zlib."""


class WindowSamples(Frozen):
    """Stored samples of one rank's window."""

    samples: tuple[Sample, ...]
    discarded: tuple[Sample, ...]
    warmup: tuple[Sample, ...]


@cache
def _windows_adapter() -> TypeAdapter[list[WindowSamples | None]]:
    return TypeAdapter(list[WindowSamples | None])


def redact_result(result: Result) -> Result:
    """Return the result without the secrets of this process and of its scenario.

    Raises StoreError for a secret whose removal would make the stored row unreadable, such as a
    environment variable whose value is a word of the schema.
    """
    redactor = Redactor.of_this_process(result.experiment.scenario.environment)
    payload = redactor.redact_value(result.model_dump(mode="json"))
    payload["command"] = redactor.redact_arguments(result.command)
    if fault := unreadable_part(payload):
        raise UnreadableResultError(f"run {result.run_id!r} cannot be stored: its {fault}")
    try:
        return Result.model_validate_json(canonical_json(payload))
    except ValueError as error:
        raise StoreError(
            f"run {result.run_id!r} cannot be stored, since {SPOILED}: {error}"
        ) from error


class RunRecord(NamedTuple):
    """Row and compressed documents in which a result is stored."""

    columns: Columns
    """Row of the table `runs`."""

    document: bytes
    """Result without samples, as compressed JSON."""

    samples: bytes
    """Samples of the result, as compressed JSON."""


def run_record(stored: Result) -> RunRecord:
    """Return the stored form of a redacted result, with its checksums."""
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
    """Insert the stored form of a result into its tables."""
    connection.execute(insert(RUNS), record.columns)
    run_id = record.columns["run_id"]
    connection.execute(insert(DOCUMENTS), {"run_id": run_id, "content": record.document})
    connection.execute(insert(SAMPLES), {"run_id": run_id, "content": record.samples})


def label_columns(run_id: str, kind: str, text: str) -> Columns:
    """Return the row of a tag or note added now; `kind` is `tag` or `note`."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"run_id": run_id, "kind": kind, "text": text, "added_at": now}


def identity_columns(stored: Result) -> Columns:
    """Return a result's ids, names, sweep, round, attempt, status and start, by column name."""
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
    """Return the error for a run too large to be read back; `limit` is the limit in bytes."""
    return ResultTooLargeError(
        f"run {run_id!r} is larger than {limit} bytes, the limit of a stored run; measure fewer "
        "steps, or let plugins report less evidence"
    )


def _detach_samples(window: dict[str, Any] | None) -> dict[str, Any] | None:
    """Remove the samples from a window's JSON and return them; None for no window."""
    if window is None:
        return None
    return {part: window.pop(part) for part in WindowSamples.model_fields}


def to_result(columns: Mapping[str, Any], with_samples: bool = True) -> Result:
    """Return the result stored in a row. Raises StoreError for a damaged or unreadable row."""
    if problem := problem_of(columns):
        raise StoreError(problem)
    try:
        result = parse_result(_decompress(columns["result"]))
        return _with_samples(result, _decompress(columns["samples"])) if with_samples else result
    except (ValueError, zlib.error, RecursionError) as error:
        raise StoreError(
            f"run {text_of(columns['run_id'])!r} is intact, but this version of accel-bench cannot "
            f"read it (schema version {columns['schema_version']}): {error}"
        ) from error


def parse_result(payload: str) -> Result:
    """Return the result that a JSON text holds. Raises ValueError for an invalid text.

    The experiment, most of the text, is parsed once. All results of an experiment share the object.
    """
    before, mark, behind = payload.partition(EXPERIMENT)
    text, found_too, rest = behind.partition(BEHIND_EXPERIMENT)
    if mark and found_too:
        with contextlib.suppress(ValueError):  # Another text, or one that is refused below.
            experiment = _shared_experiment(text)
            others = _parse(_ResultElsewhere, f"{before}{BEHIND_EXPERIMENT[1:]}{rest}")
            return Result.model_construct(**{**vars(others), "experiment": experiment})
    return _parse(Result, payload)


class _ResultElsewhere(Result):
    """Result without its experiment, which is parsed separately."""

    experiment: None = None  # type: ignore[assignment]


@lru_cache(maxsize=256)
def _shared_experiment(text: str) -> Experiment:
    return _parse(Experiment, text)


def _parse(model: type[ModelT], payload: str) -> ModelT:
    """Return JSON parsed as `model`. Raises ValueError if it does not fit or a number is huge."""
    parsed = model.model_validate_json(payload)
    _check_numbers(payload)
    return parsed


def _with_samples(result: Result, samples: str) -> Result:
    """Return the result with its windows' samples from JSON. Raises ValueError for bad JSON."""
    windows = _windows_adapter().validate_json(samples)
    _check_numbers(samples)
    for rank, parts in zip(result.ranks, windows, strict=True):
        if rank.window is not None and parts is not None:
            vars(rank.window).update(vars(parts))  # Nobody else has it yet, and copies take long.
    return result


def _decompress(content: bytes) -> str:
    """Return the text of compressed bytes. Raises ValueError if too large, or zlib.error."""
    inflating = zlib.decompressobj()
    text = inflating.decompress(content, MAXIMUM_PAYLOAD_BYTES)
    if inflating.unconsumed_tail or not inflating.eof:
        raise ValueError(f"it is larger than {MAXIMUM_PAYLOAD_BYTES} bytes, or cut short")
    return text.decode()


def readable(columns: Mapping[str, Any], with_samples: bool = True) -> Result | None:
    """Return the result stored in a row, or None for a damaged or unreadable row."""
    try:
        return to_result(columns, with_samples)
    except StoreError:
        return None


def unreadable(columns: Mapping[str, Any]) -> str:
    """Return the reason why a row cannot be read, or an empty text for a readable row."""
    try:
        to_result(columns)
    except StoreError as error:
        return str(error)
    return ""


def _check_numbers(payload: str) -> None:
    """Raise ValueError for numbers that are out of range. Free-form parts of a result, such as
    evidence and sweeps, can hold any number that JSON allows."""
    if _is_suspicious(payload):
        json.loads(payload, parse_int=_limited, parse_float=_limited, parse_constant=_limited)


def _is_suspicious(payload: str) -> bool:
    shape = payload.encode().translate(NUMBER_SHAPES, IN_NO_NUMBER)
    return any(sign in shape for sign in SUSPICIOUS)


def _limited(number: str) -> float:
    if len(number.lstrip("-")) > MAXIMUM_DIGITS or not abs(float(number)) < MAXIMUM_NUMBER:
        raise ValueError(f"the number {number[:30]} is beyond what can be computed with")
    return float(number)

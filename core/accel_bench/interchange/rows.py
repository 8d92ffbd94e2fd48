"""What a reader of another program's file returns, and how it becomes a stored result."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from accel_bench.documents.base import JsonValue
from accel_bench.documents.canonical import digest
from accel_bench.documents.files import as_text, read_bytes, slug
from accel_bench.documents.validate import validate
from accel_bench.errors import ImportFileError
from accel_bench.result import EARLIEST, Metric, Provenance, Result, Status
from accel_bench.scenario.experiment import SCHEMA_VERSION, Experiment
from accel_bench.scenario.layers import set_path
from accel_bench.scenario.models import Scenario, Stack
from accel_bench.scenario.settings import MAXIMUM_SAMPLES

MAXIMUM_BYTES = 32 * 1024 * 1024
"""A larger file is not read."""

MAXIMUM_VALUES = 1_000_000
"""Values of a JSON file, each of which may take a hundred bytes of memory."""

MAXIMUM_ROWS = 10_000
"""Rows of one file."""

UNKNOWN = "unknown"
"""Model, scenario or stack that a file does not name."""

LONGEST_NAME = 64
"""Characters of a scenario's or a stack's name."""


@dataclass(frozen=True)
class SourceFile:
    """One file, read once."""

    path: Path
    text: str

    sha256: str
    """Hex digest of the bytes that were read, as `sha256sum` prints it."""

    others: dict[str, str] = field(default_factory=dict, compare=False)
    """Digests of other files of its folder that were read for it, by name."""

    @cached_property
    def json(self) -> Any:
        """Parsed JSON; None for a file that is none, or whose top level is no mapping.

        Raises ImportFileError for too many values.
        """
        if not re.match(r"\s*\{", self.text):
            return None
        self.check_values()
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None

    def check_values(self) -> None:
        """Raise ImportFileError for so many values, or lines, that they would fill the memory."""
        if max(sum(map(self.text.count, ",[{")), self.text.count("\n")) > MAXIMUM_VALUES:
            raise ImportFileError(
                f"{self.path}: more than {MAXIMUM_VALUES:,} values, the limit of an import"
            )

    def beside(self, name: str) -> SourceFile | None:
        """Return another file of the same folder, None where there is none."""
        path = self.path.with_name(name)
        if not path.is_file():
            return None
        found = read_source(path)
        self.others[name] = found.sha256
        return found


@dataclass(frozen=True, kw_only=True)
class ImportedRow:
    """One run as a file states it."""

    key: str
    """Text that tells the row from others of its file."""

    scenario: str = UNKNOWN
    """Name of the scenario."""

    stack: str = UNKNOWN
    """Name of the stack."""

    settings: Mapping[str, JsonValue] = field(default_factory=dict)
    """What the file states of the work, by dotted key of a scenario."""

    given: Mapping[str, JsonValue] = field(default_factory=dict)
    """Settings that the user gave, by dotted key."""

    metrics: Sequence[Metric] = ()
    """Figures of the run, in units of the core."""

    status: Status = Status.OK
    """Ending of the run."""

    reasons: Sequence[str] = ()
    """Reasons for a status that is not `ok`, a sentence each."""

    corrections: Sequence[str] = ()
    """Corrections of units or scopes that the reader made, a sentence each."""

    series: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    """Values of each step or sample, by the name of what was measured."""

    machine: str = ""
    """Description of the machine in the file's words; empty where it has none."""

    started_at: str = ""
    """UTC time, ISO 8601; empty where the file has no date."""

    seconds: float | None = None
    """Wall-clock seconds of the whole run."""


def read_source(path: Path) -> SourceFile:
    """Read a file. Raises ImportFileError."""
    limit = ", the limit of an import"
    raw = read_bytes(path, MAXIMUM_BYTES, ImportFileError, limit)
    return SourceFile(path, as_text(path, raw, ImportFileError), hashlib.sha256(raw).hexdigest())


def to_results(
    rows: Iterable[ImportedRow], source: SourceFile, form: str, session: str, imported_at: str
) -> list[Result]:
    """Return the rows of a file as results of one session. Raises ImportFileError."""
    found = list(rows)
    if len(found) > MAXIMUM_ROWS:
        raise ImportFileError(f"{source.path}: {len(found):,} rows; at most {MAXIMUM_ROWS:,}")
    if not found:
        raise ImportFileError(f"{source.path}: holds no row of the format {form}")

    def result(place: int, row: ImportedRow) -> Result:
        experiment = _experiment(row, source, form)
        return Result(
            schema_version=SCHEMA_VERSION,
            run_id=f"{session}-{place:05}",
            session=session,
            experiment=experiment,
            round=0,
            position=place,
            status=row.status,
            reasons=tuple(row.reasons),
            started_at=row.started_at or EARLIEST,
            seconds=row.seconds or 0.0,
            metrics=tuple(row.metrics),
            provenance=_provenance(row, source, form, imported_at),
        )

    return [result(place, row) for place, row in enumerate(found)]


def _provenance(row: ImportedRow, source: SourceFile, form: str, imported_at: str) -> Provenance:
    series = {name: tuple(values) for name, values in row.series.items()}
    corrections = list(row.corrections)
    if sum(map(len, series.values())) > MAXIMUM_SAMPLES:
        series = {}
        corrections.append(f"raw numbers were left out: there are more than {MAXIMUM_SAMPLES:,}")
    if row.seconds is None:
        corrections.append("the file does not state how long the run took: `seconds` is 0")
    if not row.started_at:
        corrections.append(f"the file has no date: `started_at` is {EARLIEST}")
    return Provenance(
        origin="imported",
        format=form,
        file=str(source.path).encode("utf8", "replace").decode(),
        sha256=source.sha256,
        imported_at=imported_at,
        machine=row.machine,
        stated=tuple(sorted(row.settings)),
        corrections=tuple(corrections),
        series=series,
    )


def _experiment(row: ImportedRow, source: SourceFile, form: str) -> Experiment:
    """Return the experiment of a row; its identity holds the file, so it is that of no other."""
    nested: dict[str, Any] = {"name": short_name(row.scenario)}
    for key, value in row.settings.items():
        set_path(nested, key.split("."), value)
    nested.setdefault("model", {}).setdefault("id", UNKNOWN)
    where = _where(source, row)
    scenario = validate(Scenario, nested, where, ImportFileError)
    content: dict[str, JsonValue] = {"format": form, "sha256": source.sha256, "row": row.key}
    identity: dict[str, JsonValue] = {"imported": content | beyond(source, row.given)}
    return Experiment(
        id=digest(identity),
        scenario=scenario,
        stack=Stack(name=short_name(row.stack)),
        identity=identity,
    )


def beyond(source: SourceFile, given: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return what rows depend on beside their file: other files, and settings of the user."""
    parts: dict[str, JsonValue] = {"others": {**source.others}, "given": dict(given)}
    return {name: part for name, part in parts.items() if part}


def _where(source: SourceFile, row: ImportedRow) -> Callable[[Any], str]:
    return lambda location: f"{source.path}, row {row.key!r}"


def short_name(text: str) -> str:
    """Return a name that a scenario or a stack may have; different texts stay different."""
    name = slug(text)
    if len(name) > LONGEST_NAME:
        name = f"{name[: LONGEST_NAME - 9]}-{digest(text, 8)}"
    return name if name[:1].isalnum() and name.isascii() else f"x{name}"[:LONGEST_NAME]

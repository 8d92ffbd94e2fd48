"""Reader of other programs' result files by installed formats."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import ValidationError

from accel_bench.documents.base import JsonValue
from accel_bench.documents.canonical import digest
from accel_bench.documents.files import slug
from accel_bench.documents.validate import validate
from accel_bench.errors import AccelBenchError, ImportFileError, PluginError
from accel_bench.interchange import (
    GROUP,
    KIND,
    UNKNOWN,
    Format,
    ImportedRow,
    SourceFile,
    load_format,
    read_source,
)
from accel_bench.plugins.doors import DoorEntry, find_entries, find_entry
from accel_bench.result import EARLIEST, Provenance, Result
from accel_bench.scenario.draft import set_path
from accel_bench.scenario.experiment import SCHEMA_VERSION, Experiment
from accel_bench.scenario.models import Scenario, Stack
from accel_bench.scenario.settings import MAXIMUM_SAMPLES
from accel_bench_interop.export_import import is_export, read_export
from accel_bench_interop.parse import short_name

SUFFIXES = (".json", ".csv", ".log", ".txt", ".out")
"""Suffixes of files that are read in a folder."""

MAXIMUM_FILES = 10_000
"""Maximum number of files in a folder."""

MAXIMUM_ROWS = 10_000
"""Maximum number of rows in a file."""

DAMAGED = (AttributeError, LookupError, TypeError, ValueError, csv.Error)
"""Exceptions that a format's reader may raise for a damaged file."""

Given: TypeAlias = Mapping[str, JsonValue]
"""Settings of the work that the user adds, by dotted key."""

Named: TypeAlias = tuple[DoorEntry, Format]
"""Entry point of a format, and the format."""


@dataclass(frozen=True)
class ImportedFile:
    """An imported file, with its format and results."""

    path: Path
    format: str

    results: Sequence[Result]
    """Results of the file's runs, in a session whose id has a hash of the content."""


def read_runs(path: Path) -> list[Result]:
    """Return the runs of an export, or of files of another program.

    Raises StoreError for an invalid export, ImportFileError for other invalid or unknown files, and
    PluginError for a broken format.
    """
    if is_export(path):
        return list(read_export(path))
    files, _ = read_files(path, None, {})
    return [run for file in files for run in file.results]


def read_files(path: Path, name: str | None, given: Given) -> tuple[list[ImportedFile], list[str]]:
    """Return the imported files of a file or folder, and a sentence on each skipped file.

    `name` is the name of a format; without it, the format of each file is recognized. `given` are
    settings that a file does not state. Raises ImportFileError if a file is damaged or none is
    recognized, and PluginError for a broken format.
    """
    formats = _Formats(find_entries(GROUP, KIND).values() if name is None else [_reading(name)])
    if not path.is_dir():
        source = read_source(path)
        named = formats.recognized(source)
        if named is None:
            known = f"none of {formats.listed()}; --format names one"
            problem = f"{path}: is {known if name is None else f'no {formats.listed()}'}"
            raise ImportFileError("; ".join([problem, *formats.broken]))
        return [_read(source, named, given)], formats.broken
    read, left_out = [], []
    for source in _sources(path):
        named = formats.recognized(source)
        if named is None:
            left_out.append(f"{source.path}: no format of an import")
        elif why := _repeats(source, named):
            left_out.append(f"{source.path}: {why}")
        else:
            read.append(_read(source, named, given))
    if not read:
        raise ImportFileError(f"{path}: holds no file of {formats.listed()}")
    return read, left_out + formats.broken


def _reading(name: str) -> DoorEntry:
    """Return the entry point of a readable format by name.

    Raises ImportFileError if the format is only written, and PluginError if it is unknown or
    broken.
    """
    entry = find_entry(GROUP, KIND, name)
    if (form := load_format(entry)).read is None:
        raise ImportFileError(f"{name} ({form.description}) is written, and not read")
    return entry


class _Formats:
    """Installed formats, each imported when it is first tried on a file."""

    def __init__(self, entries: Iterable[DoorEntry]) -> None:
        self._entries = [*entries]

        self.broken: list[str] = []
        """Errors of broken formats, which do not prevent the use of other formats."""

    def __iter__(self) -> Iterator[Named]:
        for entry in [*self._entries]:
            try:
                form = load_format(entry)
            except PluginError as error:
                self._leave_out(entry, error)
            else:
                yield entry, form

    def _leave_out(self, entry: DoorEntry, error: PluginError) -> None:
        self._entries.remove(entry)
        self.broken.append(str(error))

    def recognized(self, source: SourceFile) -> Named | None:
        """Return the first format that recognizes a file, or None if no format does."""
        for entry, form in self:
            try:
                if form.read and form.recognizes(source):
                    return entry, form
            except AccelBenchError:
                raise
            except (Exception, SystemExit) as error:  # of another distribution
                problem = f"{source.path}: {type(error).__name__}: {error}"
                self._leave_out(entry, entry.broken(problem))
        return None

    def listed(self) -> str:
        """Return the names and descriptions of all readable formats as a text."""
        known = [f"{entry.name} ({form.description})" for entry, form in self if form.read]
        return ", ".join(known) or "the formats that are installed: there are none"


def _sources(folder: Path) -> Iterable[SourceFile]:
    paths = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    paths = [path for path in paths if path.is_file()]
    if len(paths) > MAXIMUM_FILES:
        raise ImportFileError(f"{folder}: {len(paths):,} files; at most {MAXIMUM_FILES:,}")
    return map(read_source, paths)


def _repeats(source: SourceFile, named: Named) -> str:
    """Return why a file adds nothing to other files of its folder; empty if it must be imported.

    `named` is the format of the file. Raises PluginError if the format fails.
    """
    entry, form = named
    with entry.blamed(f"{source.path}: "):
        return form.repeats(source)


def _read(source: SourceFile, named: Named, given: Given) -> ImportedFile:
    """Return the results of a file, read in the format `named`.

    `given` are settings that the file does not state. Raises ImportFileError for a damaged file,
    and PluginError if the format fails.
    """
    entry, form = named
    assert form.read is not None
    with entry.blamed(f"{source.path}: "):
        try:
            rows = [*form.read(source)]
        except DAMAGED as error:
            raise ImportFileError(
                f"{source.path}: begins as {form.description}, but is not: {error!r}"
            ) from error
        for row in rows:
            if not isinstance(row, ImportedRow):
                raise entry.broken(f"{source.path}: it reads {row!r}, which is no ImportedRow")
    try:
        return ImportedFile(source.path, entry.name, _results(rows, source, entry.name, given))
    except ValidationError as error:
        problem = "; ".join(
            f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors()
        )
        raise ImportFileError(
            f"{source.path}: the format {entry.name} reads what no result may be: {problem}"
        ) from error


def _results(
    rows: Sequence[ImportedRow], source: SourceFile, form: str, given: Given
) -> list[Result]:
    """Return the rows of a file as results of one session.

    `form` is the name of the format. `given` are the user's settings. Raises ImportFileError if
    there is no row, if there are too many, or if a row contradicts `given`.
    """
    if len(rows) > MAXIMUM_ROWS:
        raise ImportFileError(f"{source.path}: {len(rows):,} rows; at most {MAXIMUM_ROWS:,}")
    if not rows:
        raise ImportFileError(f"{source.path}: holds no row of the format {form}")
    added = [_added(row, given) for row in rows]
    session = f"import-{slug(form)}-{source.sha256[:12]}"
    if more := _beyond(source, added[0]):
        session += f"-{digest(more, 6)}"
    return [
        Result(
            schema_version=SCHEMA_VERSION,
            run_id=f"{session}-{place:05}",
            session=session,
            experiment=_experiment(row, source, form, own),
            round=0,
            position=place,
            status=row.status,
            reasons=tuple(row.reasons),
            started_at=row.started_at or EARLIEST,
            seconds=row.seconds or 0.0,
            metrics=tuple(row.metrics),
            provenance=_provenance(row, source, form, own),
        )
        for place, (row, own) in enumerate(zip(rows, added, strict=True))
    ]


def _added(row: ImportedRow, given: Given) -> Given:
    """Return the user's settings that a row lacks; raise ImportFileError if it contradicts one."""
    for key, value in given.items():
        if key in row.settings and row.settings[key] != value:
            raise ImportFileError(
                f"--set {key}={value}: row {row.key!r} states {row.settings[key]!r}; "
                "what a file states is not changed"
            )
    return {key: value for key, value in given.items() if key not in row.settings}


def _beyond(source: SourceFile, added: Given) -> dict[str, JsonValue]:
    """Return what else determines a file's rows: `others` (files) and `given` (user's settings)."""
    parts: dict[str, JsonValue] = {"others": {**source.others}, "given": dict(added)}
    return {name: part for name, part in parts.items() if part}


def _experiment(row: ImportedRow, source: SourceFile, form: str, added: Given) -> Experiment:
    """Return the experiment of a row, whose id includes the file's hash.

    `form` is the name of the format. `added` are the user's settings.
    """
    nested: dict[str, Any] = {"name": short_name(row.scenario)}
    for key, value in {**row.settings, **added}.items():
        set_path(nested, key.split("."), value)
    nested.setdefault("model", {}).setdefault("id", UNKNOWN)
    where = f"{source.path}, row {row.key!r}"
    scenario = validate(Scenario, nested, lambda location: where, ImportFileError)
    content: dict[str, JsonValue] = {"format": form, "sha256": source.sha256, "row": row.key}
    identity: dict[str, JsonValue] = {"imported": content | _beyond(source, added)}
    return Experiment(
        id=digest(identity),
        scenario=scenario,
        stack=Stack(name=short_name(row.stack)),
        identity=identity,
    )


def _provenance(row: ImportedRow, source: SourceFile, form: str, added: Given) -> Provenance:
    series = {name: tuple(values) for name, values in row.series.items()}
    corrections = list(row.corrections)
    corrections += (f"{key} = {value!r} was given by the user" for key, value in added.items())
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
        imported_at=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=row.machine,
        stated=tuple(sorted({**row.settings, **added})),
        corrections=tuple(corrections),
        series=series,
    )

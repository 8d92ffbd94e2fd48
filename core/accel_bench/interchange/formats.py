"""The door for formats: files of other programs that are read as results, or written of them.

A distribution adds one by an entry point of the group `accel_bench.formats` whose value is a
`Format`. It is imported when it is named, or when a file is held against it to be recognized.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from pydantic import ValidationError

from accel_bench.documents.base import JsonValue
from accel_bench.documents.canonical import digest
from accel_bench.documents.files import slug
from accel_bench.errors import AccelBenchError, ImportFileError, PluginError
from accel_bench.interchange.rows import ImportedRow, SourceFile, beyond, read_source, to_results
from accel_bench.plugins.doors import Entry, find_entries, find_entry
from accel_bench.result import Result

GROUP, KIND = "accel_bench.formats", "format"
"""Group of the entry points, and what each of them is."""

SUFFIXES = (".json", ".csv", ".log", ".txt", ".out")
"""Endings of the files of a folder that are looked at."""

MAXIMUM_FILES = 10_000
"""Files of one folder."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """A kind of file of another program, which is read, written, or both."""

    description: str
    """What such a file is, as an error names it: `log of MLPerf`."""

    recognizes: Callable[[SourceFile], bool] = lambda source: False
    """Return whether a file is one, by what no other format has."""

    read: Callable[[SourceFile], Iterable[ImportedRow]] | None = None
    """Yield the runs of a file that was recognized; what it lacks is left out. LookupError,
    TypeError and ValueError mean that the file is damaged."""

    write: Callable[[Iterable[Result]], Iterable[str]] | None = None
    """Yield the text of runs piece by piece: a run is loaded when it is asked for."""

    repeats: Callable[[SourceFile], str] = lambda source: ""
    """Return why a file of a folder is left out; empty where it is not."""


Named: TypeAlias = tuple[Entry, Format]
"""A format with the entry by which it came in."""


@dataclass(frozen=True)
class ImportedFile:
    """A file that was read, in its format."""

    source: SourceFile
    format: str
    rows: tuple[ImportedRow, ...]


def format_names() -> list[str]:
    """Return the names of all formats that are installed; nothing is imported."""
    return [*find_entries(GROUP, KIND)]


def read_files(
    path: Path, name: str | None, given: Mapping[str, JsonValue]
) -> tuple[list[ImportedFile], list[str]]:
    """Read a file, or the files of a folder; return them, and what was left out and why.

    `name` is a format, else it is recognized; `given` are settings of the work that a file does not
    state, by dotted key. Raises ImportFileError, PluginError.
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


def export_lines(results: Iterable[Result], name: str) -> Iterable[str]:
    """Return the text of runs in a format; a run is read when its text is.

    Raises ImportFileError for a format that is not written, and PluginError.
    """
    entry = find_entry(GROUP, KIND, name)
    if (form := _load(entry)).write is None:
        formats = _Formats(find_entries(GROUP, KIND).values())
        written = ", ".join(one.name for one, other in formats if other.write)
        raise ImportFileError(f"{name!r} is not written; {written} are")
    return _written(entry, form.write, results)


def _written(
    entry: Entry, write: Callable[[Iterable[Result]], Iterable[str]], results: Iterable[Result]
) -> Iterator[str]:
    """Yield what a format writes. Raises PluginError that names it where it fails."""
    with entry.blamed():
        for text in write(results):
            if not isinstance(text, str):
                raise entry.broken(f"it writes {text!r}, which is no text")
            yield text


def _reading(name: str) -> Entry:
    """Return the format of a name. Raises ImportFileError where it is not read, PluginError."""
    entry = find_entry(GROUP, KIND, name)
    if (form := _load(entry)).read is None:
        raise ImportFileError(f"{name} ({form.description}) is written, and not read")
    return entry


def _load(entry: Entry) -> Format:
    """Import a format. Raises PluginError that names its distribution."""
    found = entry.load()
    if not isinstance(found, Format):
        raise entry.broken(f"{entry.point.value} is no accel_bench.Format")
    return found


class _Formats:
    """Formats that a file may have: each is imported when a file is first held against it."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._waiting = iter(entries)
        self._loaded: list[tuple[Entry, Format]] = []

        self.broken: list[str] = []
        """What was found to be broken, each with its reason: it hides no other."""

    def __iter__(self) -> Iterator[Named]:
        yield from [*self._loaded]
        for entry in self._waiting:
            try:
                form = _load(entry)
            except PluginError as error:
                self.broken.append(str(error))
            else:
                self._loaded.append((entry, form))
                yield entry, form

    def recognized(self, source: SourceFile) -> Named | None:
        """Return the first format that recognizes a file."""
        for entry, form in self:
            try:
                if form.read and form.recognizes(source):
                    return entry, form
            except AccelBenchError:
                raise
            except (Exception, SystemExit) as error:  # of another distribution
                self._loaded.remove((entry, form))
                problem = entry.broken(f"{source.path}: {type(error).__name__}: {error}")
                self.broken.append(str(problem))
        return None

    def listed(self) -> str:
        """Return all formats that are read, with what they are."""
        known = [f"{entry.name} ({form.description})" for entry, form in self if form.read]
        return ", ".join(known) or "the formats that are installed: there are none"


def _sources(folder: Path) -> Iterable[SourceFile]:
    paths = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    paths = [path for path in paths if path.is_file()]
    if len(paths) > MAXIMUM_FILES:
        raise ImportFileError(f"{folder}: {len(paths):,} files; at most {MAXIMUM_FILES:,}")
    return map(read_source, paths)


def _read(source: SourceFile, named: Named, given: Mapping[str, JsonValue]) -> ImportedFile:
    """Read a file in its format. Raises ImportFileError for a damaged one, and PluginError."""
    entry, form = named
    assert form.read is not None
    with entry.blamed(f"{source.path}: "):
        try:
            found = [*form.read(source)]
        except (LookupError, TypeError, ValueError) as error:
            raise ImportFileError(
                f"{source.path}: begins as {form.description}, but is not: {error!r}"
            ) from error
        for row in found:
            if not isinstance(row, ImportedRow):
                raise entry.broken(f"{source.path}: it reads {row!r}, which is no ImportedRow")
        rows = tuple(_with_given(row, given) for row in found)
    return ImportedFile(replace(source, text=""), entry.name, rows)


def _repeats(source: SourceFile, named: Named) -> str:
    """Return why a file of a folder is left out; empty where it is not. Raises PluginError."""
    entry, form = named
    with entry.blamed(f"{source.path}: "):
        return form.repeats(source)


def _with_given(row: ImportedRow, given: Mapping[str, JsonValue]) -> ImportedRow:
    """Add the user's settings to those of the file. Raises ImportFileError for another value."""
    for key, value in given.items():
        if key in row.settings and row.settings[key] != value:
            raise ImportFileError(
                f"--set {key}={value}: row {row.key!r} states {row.settings[key]!r}; "
                "what a file states is not changed"
            )
    added = {key: value for key, value in given.items() if key not in row.settings}
    notes = [f"{key} = {value!r} was given by the user" for key, value in added.items()]
    settings = {**row.settings, **added}
    return replace(row, settings=settings, given=added, corrections=[*row.corrections, *notes])


def results_of_file(file: ImportedFile, now: str) -> list[Result]:
    """Return the rows of a file as results of a session that is named by its content.

    Raises ImportFileError for a row that no result can hold.
    """
    session = f"import-{slug(file.format)}-{file.source.sha256[:12]}"
    if more := beyond(file.source, file.rows[0].given if file.rows else {}):
        session += f"-{digest(more, 6)}"
    try:
        return to_results(file.rows, file.source, file.format, session, now)
    except ValidationError as error:
        problem = "; ".join(
            f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()
        )
        raise ImportFileError(
            f"{file.source.path}: the format {file.format} reads what no result may be: {problem}"
        ) from error

"""Formats of results that can be imported, and how a file's format is recognized."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from accel_bench.documents.base import JsonValue
from accel_bench.errors import ImportFileError, did_you_mean
from accel_bench.interchange import fms_csv, ipfs_json, mllog, optimum, pytest_json, trainer
from accel_bench.interchange.rows import ImportedRow, Source, read_source

SUFFIXES = (".json", ".csv", ".log", ".txt", ".out")
"""Endings of the files of a folder that are looked at."""

MAXIMUM_FILES = 10_000
"""Files of one folder."""


@dataclass(frozen=True)
class Format:
    """One format of one program."""

    name: str
    description: str
    recognizes: Callable[[Source], bool]
    read: Callable[[Source], Iterable[ImportedRow]]

    repeats: Callable[[Source], str] = lambda source: ""
    """Return why a file of a folder is left out; empty where it is not."""


FORMATS = (
    Format(
        "fms-csv",
        "CSV of fms-acceleration's benchmark",
        fms_csv.recognizes,
        fms_csv.read,
    ),
    Format("mllog", "log of MLPerf", mllog.recognizes, mllog.read),
    Format(
        "pytest-benchmark",
        "JSON of pytest-benchmark",
        pytest_json.recognizes,
        pytest_json.read,
    ),
    Format(
        "optimum-benchmark",
        "benchmark.json of optimum-benchmark",
        optimum.recognizes,
        optimum.read,
        optimum.is_repeated,
    ),
    Format(
        "ipfs-json",
        "JSON tree of the IPFS framework's training benchmarks",
        ipfs_json.recognizes,
        ipfs_json.read,
    ),
    Format(
        "trainer-results",
        "all_results.json of the Hugging Face Trainer",
        trainer.is_results,
        trainer.read_results,
        trainer.is_repeated,
    ),
    Format(
        "trainer-state",
        "trainer_state.json of the Hugging Face Trainer",
        trainer.is_state,
        trainer.read_state,
        trainer.is_repeated,
    ),
)
"""All formats, each recognized by what no other has."""


@dataclass(frozen=True)
class ImportedFile:
    """A file that was read, in its format."""

    source: Source
    format: str
    rows: tuple[ImportedRow, ...]


def read_files(
    path: Path, name: str | None, given: Mapping[str, JsonValue]
) -> tuple[list[ImportedFile], list[str]]:
    """Read a file, or the files of a folder; return them, and which were left out and why.

    `name` is a format, else it is recognized; `given` are settings of the work that a file does not
    state, by dotted key. Raises ImportFileError.
    """
    form = None if name is None else _named(name)
    if not path.is_dir():
        source = read_source(path)
        if form is not None and not form.recognizes(source):
            raise ImportFileError(f"{path}: is no {form.description}")
        return [_read(source, form or _recognized(source), given)], []
    read, left_out = [], []
    for source in _sources(path):
        found = form or _format_of(source)
        if found is None or not found.recognizes(source):
            left_out.append(f"{source.path}: no format of an import")
        elif why := found.repeats(source):
            left_out.append(f"{source.path}: {why}")
        else:
            read.append(_read(source, found, given))
    if not read:
        raise ImportFileError(f"{path}: holds no file of {_known()}")
    return read, left_out


def _sources(folder: Path) -> Iterable[Source]:
    paths = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    paths = [path for path in paths if path.is_file()]
    if len(paths) > MAXIMUM_FILES:
        raise ImportFileError(f"{folder}: {len(paths):,} files; at most {MAXIMUM_FILES:,}")
    return map(read_source, paths)


def _read(source: Source, form: Format, given: Mapping[str, JsonValue]) -> ImportedFile:
    try:
        rows = tuple(form.read(source))
    except (LookupError, TypeError, AttributeError, ValueError, csv.Error) as error:
        raise ImportFileError(
            f"{source.path}: begins as {form.description}, but is not: {error!r}"
        ) from error
    rows = tuple(_with_given(row, given) for row in rows)
    return ImportedFile(replace(source, text=""), form.name, rows)


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


def _format_of(source: Source) -> Format | None:
    return next((one for one in FORMATS if one.recognizes(source)), None)


def _recognized(source: Source) -> Format:
    found = _format_of(source)
    if found is None:
        raise ImportFileError(f"{source.path}: is none of {_known()}; --format names one")
    return found


def _named(name: str) -> Format:
    for one in FORMATS:
        if one.name == name:
            return one
    raise ImportFileError(
        f"no format is called {name!r}{did_you_mean(name, [one.name for one in FORMATS])}"
    )


def _known() -> str:
    return ", ".join(f"{one.name} ({one.description})" for one in FORMATS)

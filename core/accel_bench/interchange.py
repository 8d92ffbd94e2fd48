"""Formats of other programs' files, which are read as results, or written from results.

A distribution adds a format by an entry point of the group `accel_bench.formats` whose value is a
`Format`. The format is imported when a user names it, or to recognize a file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from accel_bench.documents.base import JsonValue
from accel_bench.documents.files import as_text, read_bytes
from accel_bench.errors import ImportFileError
from accel_bench.plugins.doors import DoorEntry, find_entries, find_entry
from accel_bench.result import Metric, Result, Status

GROUP, KIND = "accel_bench.formats", "format"
"""Group of the entry points, and the noun for such an entry in messages."""

MAXIMUM_BYTES = 32 * 1024 * 1024
"""Size in bytes above which a file is refused."""

MAXIMUM_VALUES = 1_000_000
"""Largest number of values in a JSON file; each may take a hundred bytes of memory."""

UNKNOWN = "unknown"
"""Name for a model, scenario or stack that a file does not state."""


@dataclass(frozen=True)
class SourceFile:
    """A file of another program, read into memory once."""

    path: Path
    text: str

    sha256: str
    """Hex digest of the bytes that were read, as `sha256sum` prints it."""

    others: dict[str, str] = field(default_factory=dict, compare=False)
    """SHA-256 digests of further files that the reader has used, by name within the folder."""

    @cached_property
    def json(self) -> Any:
        """Parsed JSON; None for a file that is not JSON or whose top level is no mapping.

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
        """Raise ImportFileError if the file has more than MAXIMUM_VALUES values or lines."""
        if max(sum(map(self.text.count, ",[{")), self.text.count("\n")) > MAXIMUM_VALUES:
            raise ImportFileError(
                f"{self.path}: more than {MAXIMUM_VALUES:,} values, the limit of an import"
            )

    def beside(self, name: str) -> SourceFile | None:
        """Return the file called `name` in the same folder, or None if it does not exist."""
        path = self.path.with_name(name)
        if not path.is_file():
            return None
        source = read_source(path)
        self.others[name] = source.sha256
        return source


@dataclass(frozen=True, kw_only=True)
class ImportedRow:
    """One run, as a file of another program states it."""

    key: str
    """Unique text of the row within its file."""

    scenario: str = UNKNOWN
    """Name of the scenario."""

    stack: str = UNKNOWN
    """Name of the stack."""

    settings: Mapping[str, JsonValue] = field(default_factory=dict)
    """Settings of the work that the file states, by dotted key of a scenario."""

    metrics: Sequence[Metric] = ()
    """Figures of the run, in the units of metrics such as bytes and seconds."""

    status: Status = Status.OK
    """Status with which the run ended."""

    reasons: Sequence[str] = ()
    """Reasons for a status that is not `ok`, a sentence each."""

    corrections: Sequence[str] = ()
    """Corrections of units or scopes that the reader made, a sentence each."""

    series: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    """Values of each step or sample, by the name of the quantity."""

    machine: str = ""
    """Description of the machine in the file's words; empty without one."""

    started_at: str = ""
    """Start of the run: UTC time, ISO 8601; empty without one."""

    seconds: float | None = None
    """Wall-clock seconds of the whole run."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """A file format of another program, with functions to read it, write it, or both."""

    description: str
    """Name of the format in error messages, such as `log of MLPerf`."""

    recognizes: Callable[[SourceFile], bool] = lambda source: False
    """Function that returns whether a file has this format, by a trait of no other format."""

    read: Callable[[SourceFile], Iterable[ImportedRow]] | None = None
    """Function that yields the runs of a recognized file, without values that it lacks.
    AttributeError, LookupError, TypeError, ValueError and csv.Error mean that the file is
    damaged."""

    write: Callable[[Iterable[Result]], Iterable[str]] | None = None
    """Function that yields the text of runs piece by piece, loading each run when needed."""

    repeats: Callable[[SourceFile], str] = lambda source: ""
    """Function that returns the reason to leave a file of a folder out; empty for none."""


def read_source(path: Path) -> SourceFile:
    """Return a file of another program, read into memory. Raises ImportFileError if it cannot be
    read or is too large."""
    limit = ", the limit of an import"
    raw = read_bytes(path, MAXIMUM_BYTES, ImportFileError, limit)
    return SourceFile(path, as_text(path, raw, ImportFileError), hashlib.sha256(raw).hexdigest())


def format_names() -> list[str]:
    """Return the names of all installed formats, without importing them."""
    return [*find_entries(GROUP, KIND)]


def load_format(entry: DoorEntry) -> Format:
    """Import and return the format of an entry point. Raises PluginError, which names the entry's
    distribution, if the format is broken."""
    form = entry.load()
    if not isinstance(form, Format):
        raise entry.broken(f"{entry.point.value} is no accel_bench.Format")
    return form


def export_lines(results: Iterable[Result], name: str) -> Iterable[str]:
    """Return the text of runs in the format `name`, in pieces; each run is loaded when needed.
    Raises ImportFileError for a format that cannot be written, PluginError for an unknown or broken
    format."""
    entry = find_entry(GROUP, KIND, name)
    if (form := load_format(entry)).write is None:
        raise ImportFileError(f"{name} ({form.description}) is read, and not written")
    return _written(entry, form.write, results)


def _written(
    entry: DoorEntry, write: Callable[[Iterable[Result]], Iterable[str]], results: Iterable[Result]
) -> Iterator[str]:
    """Yield the text that `write` makes of results; raise PluginError on `entry` if that fails."""
    with entry.blamed():
        for text in write(results):
            if not isinstance(text, str):
                raise entry.broken(f"it writes {text!r}, which is no text")
            yield text

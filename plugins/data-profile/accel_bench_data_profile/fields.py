"""Names of the fields in a data set's first rows, without reading the other rows."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from accel_bench.errors import ScenarioError

ROWS = 300
"""Number of first rows whose fields count, since a row may lack what others have."""

MOST_TEXT = 64 * 2**20
"""Maximum characters of the first rows that are read."""

SUFFIXES = (".jsonl", ".parquet", ".arrow")
"""Suffixes of files with rows; `datasets` saves Arrow streams as `.arrow`."""


def first_fields(path: Path) -> Collection[str]:
    """Return the names of the fields in the first rows of a file, or of a folder's first file.

    Returns an empty collection if there are none. Raises ScenarioError if a Parquet or Arrow file
    cannot be read.
    """
    file = _first_file(path) if path.is_dir() else path
    if file is None or file.suffix not in SUFFIXES or not file.is_file():
        return ()
    return _fields_of_lines(file) if file.suffix == ".jsonl" else _fields_of_table(file)


def _first_file(folder: Path) -> Path | None:
    """Return the first file with rows below a folder, in order of paths; None if there is none.

    In a folder with splits only the split `train` counts.
    """
    root = folder / "train" if (folder / "dataset_dict.json").is_file() else folder
    files = (path for suffix in SUFFIXES for path in root.rglob(f"*{suffix}"))
    shown = (
        path for path in files if not any(part[0] == "." for part in path.relative_to(root).parts)
    )
    return min(shown, default=None)


def _fields_of_lines(file: Path) -> Collection[str]:
    """Return the fields of the first lines, up to a line that is no JSON object."""
    names: dict[str, None] = {}
    with file.open(encoding="utf-8-sig", errors="replace") as lines:
        left, rows = MOST_TEXT, 0
        while rows < ROWS and (line := lines.readline(left)):
            left -= len(line)
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                break
            if not isinstance(row, dict):
                break
            names.update(dict.fromkeys(row))
            rows += 1
    return names


def _fields_of_table(file: Path) -> Collection[str]:
    import pyarrow
    from pyarrow import ipc, parquet

    try:
        with pyarrow.OSFile(str(file)) as source:
            if file.suffix == ".parquet":
                names: list[str] = parquet.read_schema(source).names
            else:
                names = ipc.open_stream(source).schema.names
    except (pyarrow.ArrowException, OSError) as error:
        raise ScenarioError(f"{file}: not a readable table: {error}") from error
    return names

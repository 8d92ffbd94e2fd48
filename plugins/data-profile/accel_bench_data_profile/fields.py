"""Names of the fields in a data set's first row, without reading the other rows."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from accel_bench.errors import ScenarioError

LONGEST_LINE = 64 * 2**20
"""Maximum bytes of a first line that is read."""

SUFFIXES = (".jsonl", ".parquet", ".arrow")
"""Suffixes of files with rows; `datasets` saves Arrow streams as `.arrow`."""


def first_fields(path: Path) -> Collection[str]:
    """Return the names of the fields in the first row of a file, or of a folder's first file.

    Returns an empty collection if there are none. Raises ScenarioError if a Parquet or Arrow file
    cannot be read.
    """
    file = _first_file(path) if path.is_dir() else path
    if file is None or file.suffix not in SUFFIXES or not file.is_file():
        return ()
    return _fields_of_line(file) if file.suffix == ".jsonl" else _fields_of_table(file)


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


def _fields_of_line(file: Path) -> Collection[str]:
    with file.open(encoding="utf-8-sig", errors="replace") as lines:
        line = "\n"
        while line and not line.strip():
            line = lines.readline(LONGEST_LINE)
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return ()
    return row.keys() if isinstance(row, dict) else ()


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

"""Runs as Parquet: written here, and read by a process of its own.

A file of a kilobyte can hold a page that takes gigabytes, and the library ends its process where it
gets none: so that process has little memory, and what it says is a sentence.
"""

from __future__ import annotations

import os
import resource
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from accel_bench.documents.files import aside_of, naming_the_file
from accel_bench.documents.program import python_command
from accel_bench.documents.spool import Spool
from accel_bench.errors import StoreError
from accel_bench.store.schema import MAXIMUM_PAYLOAD_BYTES

if TYPE_CHECKING:
    from accel_bench.result import Result

ROWS_AT_ONCE = 100
"""Rows that are written together."""

RESULT_COLUMN = "result"
"""Column with the whole result as JSON."""

NEEDED = "Parquet needs pyarrow: pip install 'accel-bench[parquet]'"

READING_BYTES = 8 * MAXIMUM_PAYLOAD_BYTES
"""Memory of the process that reads, beside what it needs for itself: the largest run fits."""

_LENGTH = struct.Struct("<Q")
"""Number of bytes of a text, written before it."""


def write_parquet(results: Iterable[Result], path: Path) -> None:
    """Write a row for each run, with the columns of the CSV export and the whole result.

    Raises StoreError without pyarrow.
    """
    parquet, arrow = _pyarrow()
    aside = aside_of(path)
    with naming_the_file(path), Spool(path.parent) as spool:
        # The columns are those of all rows, so nothing is written before the last is known.
        numbers = _spool_rows(results, spool)
        types = {name: arrow.float64() if is_number else arrow.string()
                 for name, is_number in numbers.items()}  # fmt: skip
        schema = arrow.schema({**types, RESULT_COLUMN: arrow.string()})
        rows = iter(spool)
        try:
            with parquet.ParquetWriter(aside, schema) as writer:
                while part := list(islice(rows, ROWS_AT_ONCE)):
                    columns = {
                        name: [_of_type(row.get(name), is_number) for row, _ in part]
                        for name, is_number in numbers.items()
                    }
                    columns[RESULT_COLUMN] = [text for _, text in part]
                    writer.write_table(arrow.table(columns, schema=schema))
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)


def _spool_rows(results: Iterable[Result], spool: Spool) -> dict[str, bool]:
    """Spool each run as its flat row and its text; return which columns hold numbers alone."""
    from accel_bench.analysis.tables.listing import flat_run  # The process that reads needs none.

    numbers: dict[str, bool] = {}
    for one in results:
        row = flat_run(one)
        for name, value in row.items():
            is_number = value is None or isinstance(value, int | float)
            numbers[name] = is_number and numbers.get(name, True)
        spool.add([row, one.model_dump_json()])
    return numbers


def _of_type(value: Any, is_number: bool) -> float | str | None:
    """Return a value as its column's type: Parquet has one for all rows."""
    if value is None:
        return None
    return float(value) if is_number else str(value)


def parquet_texts(handle: BinaryIO, path: Path) -> Iterator[str]:
    """Yield the JSON of each run in a Parquet file. Raises StoreError with the reason."""
    if find_spec("pyarrow") is None:
        raise StoreError(NEEDED)
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    command = python_command("-m", "accel_bench.store.parquet")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, stdin=handle, env=environment, **pipes) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            while len(head := process.stdout.read(_LENGTH.size)) == _LENGTH.size:
                yield process.stdout.read(*_LENGTH.unpack(head)).decode()
            said = process.stderr.read().decode(errors="replace").splitlines()
            code = process.wait()
        finally:
            process.kill()
    if code < 0:
        said = [f"reading it needs more than {READING_BYTES:,} bytes, which no run does"]
    if code:
        reason = "".join(said[-1:])
        raise StoreError(f"{path}: no Parquet file of `accel-bench results export`: {reason}")


def _write_texts(source: BinaryIO, target: BinaryIO) -> None:
    """Write the result of each row of a Parquet file, one row in memory at a time.

    Raises what pyarrow raises, MemoryError and ValueError.
    """
    parquet, _ = _pyarrow()
    _limit_memory()
    size = os.fstat(source.fileno()).st_size
    file = parquet.ParquetFile(source, buffer_size=2**20, pre_buffer=False)
    if file.metadata.num_rows > size:
        raise ValueError(f"it states {file.metadata.num_rows:,} rows in {size:,} bytes")
    for batch in file.iter_batches(1, columns=[RESULT_COLUMN], use_threads=False):
        for text in batch.column(RESULT_COLUMN):
            content = str(text.as_py()).encode()
            target.write(_LENGTH.pack(len(content)) + content)


def _limit_memory() -> None:
    """Let this process take no more memory than one run needs, where the system says how much it
    has."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return
    most = pages * resource.getpagesize() + READING_BYTES
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise StoreError(NEEDED) from error
    return parquet, pyarrow


if __name__ == "__main__":
    try:
        _write_texts(sys.stdin.buffer, sys.stdout.buffer)
    except MemoryError:
        sys.exit(f"reading it needs more than {READING_BYTES:,} bytes, which no run does")
    except Exception as error:  # Whatever the library makes of a file of somebody.
        sys.exit(f"{error}".replace("\n", " "))

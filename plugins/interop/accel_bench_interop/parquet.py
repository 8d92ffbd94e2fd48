"""Reader of runs in a Parquet file, in a separate process with little memory.

A file of a kilobyte can contain a page of gigabytes, and pyarrow aborts its process when memory
ends.
"""

from __future__ import annotations

import os
import resource
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from accel_bench.documents.program import python_command
from accel_bench.errors import StoreError
from accel_bench.store.schema import MAXIMUM_PAYLOAD_BYTES
from accel_bench_interop.row_files import NEEDED, RESULT_COLUMN, import_pyarrow

READING_BYTES = 8 * MAXIMUM_PAYLOAD_BYTES
"""Maximum bytes of memory that the reading process may add, enough for the largest run."""

TOO_LARGE = f"reading it needs more than {READING_BYTES:,} bytes, which no run does"

_LENGTH = struct.Struct("<Q")
"""Format of a text's length in bytes, which precedes the text."""


def parquet_texts(handle: BinaryIO, path: Path) -> Iterator[str]:
    """Yield the JSON text of each run in a Parquet file.

    `path` names the file in errors. Raises StoreError if pyarrow is missing, or if the file is no
    export.
    """
    if find_spec("pyarrow") is None:
        raise StoreError(NEEDED)
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    command = python_command("-m", "accel_bench_interop.parquet")
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
    if code:
        reason = TOO_LARGE if code < 0 else "".join(said[-1:])
        raise StoreError(f"{path}: no Parquet file of `accel-bench results export`: {reason}")


def _write_texts(source: BinaryIO, target: BinaryIO) -> None:
    """Write length and JSON text of the result in each row of a Parquet file, row by row.

    Raises pyarrow's errors or ValueError for a damaged file, and MemoryError for too large a run.
    """
    parquet, _ = import_pyarrow()
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
    """Limit the memory of this process to what one run needs, if the system supports it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return
    most = pages * resource.getpagesize() + READING_BYTES
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    try:
        _write_texts(sys.stdin.buffer, sys.stdout.buffer)
    except MemoryError:
        sys.exit(TOO_LARGE)
    except Exception as error:  # Whatever the library makes of a file of somebody.
        sys.exit(f"{error}".replace("\n", " "))

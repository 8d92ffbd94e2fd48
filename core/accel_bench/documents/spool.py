"""Keep many values in a temporary file until the last of them is known."""

from __future__ import annotations

import json
import struct
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LENGTH = struct.Struct("<Q")
"""What stands before each value: its number of bytes."""

FASTEST = 1
"""Level of zlib."""


class Spool:
    """JSON values that are read back in the order in which they were added.

    It lies in `folder`, else where the system keeps temporary files, and is gone when it is closed.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, value: Any) -> None:
        """Add a value."""
        content = zlib.compress(json.dumps(value).encode(), FASTEST)
        self._file.write(LENGTH.pack(len(content)) + content)

    def __iter__(self) -> Iterator[Any]:
        self._file.seek(0)
        while head := self._file.read(LENGTH.size):
            (length,) = LENGTH.unpack(head)
            yield json.loads(zlib.decompress(self._file.read(length)))

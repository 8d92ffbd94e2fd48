"""File of an observed process's steps, in shared memory."""

from __future__ import annotations

import mmap
import os
from typing import Any

FIELDS = 7
"""Number of fields of a step, each of eight bytes: its end in nanoseconds of the monotonic clock;
processed, real and supervised tokens (-1 if unseen); loss as float64 (NaN if unseen); backward
passes; 1 once the step has ended."""

GROWTH = 1024
"""Number of steps by which a file grows. Disk space is allocated for them, since writing to a
mapped page without disk space would kill the process."""


class Steps:
    """Memory-mapped file of a process's steps, with a row of `FIELDS` numbers for each step."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self.room = 0
        self.whole: Any = ()
        self.real: Any = ()
        self.grow()

    def grow(self) -> None:
        """Enlarge the file for more steps. Raises OSError on a full disk."""
        more = GROWTH * FIELDS * 8
        os.posix_fallocate(self._file, self.room * FIELDS * 8, more)
        self.room += GROWTH
        page = mmap.mmap(self._file, self.room * FIELDS * 8)
        self.whole, self.real = memoryview(page).cast("q"), memoryview(page).cast("d")

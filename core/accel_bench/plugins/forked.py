"""Run plugins' code in a copy of this process first, and survive it when it ends the copy."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import select
import signal
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from accel_bench.plugins.shipped import is_shipped

CALL_BYTES = 4096
"""Size of the page in which a copy writes whose code it calls."""


class Ending(NamedTuple):
    """How a copy of this process ended before its work had returned."""

    how: str
    """`exit code 0` or `SIGSEGV`; empty when it had not returned in time."""

    call: tuple[str, str, str]
    """Plugin, distribution and hook that `note_call` was last given; empty texts without one."""


class _Copy:
    """What a copy writes to; None in the process itself."""

    page: mmap.mmap | None = None


def note_call(plugin: str, distribution: str, hook: str) -> None:
    """In a copy, write down which plugin's code is called from here on, but for shipped ones."""
    if _Copy.page is not None and not is_shipped(distribution):
        text = "\0".join((plugin, distribution, hook)).encode()
        _Copy.page[:] = text[:CALL_BYTES].ljust(CALL_BYTES, b"\n")


def ending_in_copy(work: Callable[[], object], seconds: float) -> Ending | None:
    """Run `work` in a forked process; return how that ended it, None when it returned or raised.

    What it raises is left to the same work in this process to report.
    """
    page = mmap.mmap(-1, CALL_BYTES)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _work_and_leave(work, writing, page, seconds)
    os.close(writing)
    in_time = returned = False
    try:
        in_time = bool(select.select([reading], [], [], seconds)[0])
        returned = in_time and os.read(reading, 1) != b""
    finally:
        os.close(reading)
        if not in_time:
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if returned:
        return None
    how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    noted = page[:].strip(b"\0\n").decode(errors="replace")
    plugin, distribution, hook, *_ = (*noted.split("\0"), "", "")
    return Ending(how if in_time else "", (plugin, distribution, hook))


def _work_and_leave(
    work: Callable[[], object], writing: int, page: mmap.mmap, seconds: float
) -> NoReturn:
    """Work, say that this returned, and end without doing anything else that the parent does."""
    try:
        _Copy.page = page
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        # The kernel ends this process where the parent has gone and cannot.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(math.ceil(seconds) + 1)
        with contextlib.suppress(BaseException):
            work()
        os.write(writing, b"1")
    finally:
        os._exit(0)

"""Functions that end a process with its parent, or put a process between a parent and a child."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

from accel_bench.errors import WorkerError

PR_SET_PDEATHSIG = 1
"""Linux option of `prctl`: the signal that a process gets when its parent dies."""


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent ends, on Linux.

    `parent` is the parent's process id, 0 for unknown. Raises WorkerError if the parent has ended
    already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != parent:
        raise WorkerError("the process that started this one has gone")


def put_process_between() -> None:
    """Fork, and continue only in the child, whose code then cannot kill the caller's own parent.

    The calling process waits for the child and exits with the child's status. If it is killed, the
    child ends too. Child code that kills its parent thus kills only the calling process.
    """
    between = os.getpid()
    if child := os.fork():
        for number in (signal.SIGINT, signal.SIGUSR1):  # They are meant for the new process.
            signal.signal(number, signal.SIG_IGN)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code < 0:
            with contextlib.suppress(OSError):  # SIGKILL has no handler.
                signal.signal(-code, signal.SIG_DFL)
            os.kill(between, -code)
        os._exit(code)
    die_with_parent(between)

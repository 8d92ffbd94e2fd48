"""What a process does when the one that started it ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from accel_bench.errors import WorkerError

PR_SET_PDEATHSIG = 1
"""Linux: the signal that a process gets when its parent dies."""


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent ends, on Linux.

    `parent` is the parent's process id, 0 when it is not known. Raises WorkerError when the parent
    has gone already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != parent:
        raise WorkerError("the process that started this one has gone")

"""Context managers that restore this process's scheduling, or end processes that a block starts."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import psutil

from accel_bench.documents.base import Frozen

PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
"""Linux options of `prctl` that set and read the adoption of orphaned descendants."""

PATIENCE_SECONDS = 5.0
"""Seconds to wait for the end of killed processes."""


class Scheduling(Frozen):
    """Scheduling of a thread by the system; null for an unsupported setting."""

    nice: int
    """Priority from -20, the highest, to 19."""

    policy: str | None = None
    """Scheduling policy, such as `SCHED_OTHER`."""

    cpus: int | None = None
    """Number of CPUs on which the thread may run."""


def read_scheduling() -> Scheduling:
    """Return the scheduling of the calling thread."""
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    if sys.platform != "linux":
        return Scheduling(nice=nice)
    number = os.sched_getscheduler(0)
    known = ("SCHED_OTHER", "SCHED_BATCH", "SCHED_IDLE", "SCHED_FIFO", "SCHED_RR")
    policy = next((name for name in known if getattr(os, name) == number), str(number))
    return Scheduling(nice=nice, policy=policy, cpus=len(os.sched_getaffinity(0)))


@contextlib.contextmanager
def restored_scheduling() -> Iterator[None]:
    """Restore this program's CPUs, policy and priority, which workers inherit, after the block.

    Only root may raise a priority again.
    """
    if sys.platform != "linux":
        yield
        return
    threads = {os.getpid(), threading.get_native_id()}
    before = {thread: _settings_of(thread) for thread in threads}
    try:
        yield
    finally:
        for thread, settings in before.items():
            with contextlib.suppress(OSError):
                _put_back(thread, *settings)


@contextlib.contextmanager
def ended_children() -> Iterator[None]:
    """End the processes that the block has left running, and their orphans, after the block.

    This works on Linux in the main thread, if all other threads are daemons. Otherwise nothing is
    ended, since other threads or programs may have started those processes.
    """
    threads = (thread for thread in threading.enumerate() if not thread.daemon)
    if sys.platform != "linux" or [*threads] != [threading.current_thread()]:
        yield
        return
    libc, adopted = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(adopted))
    before = set(running_children())
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _end_all_but(before | _python_helpers())
        libc.prctl(PR_SET_CHILD_SUBREAPER, adopted.value)


if sys.platform == "linux":

    def _settings_of(thread: int) -> tuple[set[int], int, int, int]:
        policy, parameter = os.sched_getscheduler(thread), os.sched_getparam(thread)
        nice = os.getpriority(os.PRIO_PROCESS, thread)
        return os.sched_getaffinity(thread), policy, parameter.sched_priority, nice

    def _put_back(thread: int, cpus: set[int], policy: int, priority: int, nice: int) -> None:
        if os.sched_getaffinity(thread) != cpus:
            os.sched_setaffinity(thread, cpus)
        if os.sched_getscheduler(thread) != policy:
            os.sched_setscheduler(thread, policy, os.sched_param(priority))
        if os.getpriority(os.PRIO_PROCESS, thread) != nice:
            os.setpriority(os.PRIO_PROCESS, thread, nice)


def running_children() -> Iterator[int]:
    """Yield the process ids of this process's running children."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if child.status() != psutil.STATUS_ZOMBIE:
                yield child.pid


def _python_helpers() -> set[int]:
    """Return a set with the process id of Python's resource tracker, empty if none is running.

    The tracker computes nothing and ends with this program. Python warns if it ends earlier.
    """
    module = sys.modules.get("multiprocessing.resource_tracker")
    helper = getattr(getattr(module, "_resource_tracker", None), "_pid", None)
    return set() if helper is None else {helper}


def _end_all_but(kept: set[int]) -> None:
    """Kill all children except `kept`, and orphans that become children, in 5 s at most."""
    until = time.monotonic() + PATIENCE_SECONDS
    while (left := {*running_children()} - kept) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)

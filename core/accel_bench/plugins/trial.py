"""Trial of plugins' code in a process of its own, in case the code exits or crashes."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

from accel_bench.plugins.shipped import is_shipped

PROGRAM = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "import pickle; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from accel_bench.plugins.trial import serve; serve()"
)
"""Python code that the trial's process runs, with the import path of its parent."""


class Ending(NamedTuple):
    """End of a trial's process before its work returned, and the plugin whose hook ran last."""

    how: str
    """Exit code or signal, such as `exit code 0` or `SIGSEGV`; empty at the time limit."""

    call: tuple[str, str, str]
    """Plugin, distribution and hook of the last `note_call`; empty texts without one."""


class _Trial:
    """Holder of `notes`, the descriptor of a trial's pipe to its parent; None outside a trial."""

    notes: int | None = None


def note_call(plugin: str, distribution: str, hook: str) -> None:
    """Record in a trial's pipe the plugin whose code runs from here on, unless it is shipped."""
    if _Trial.notes is not None and not is_shipped(distribution):
        os.write(_Trial.notes, "\0".join(("\n" + plugin, distribution, hook)).encode())


def run_in_trial(work: Callable[[], object], seconds: float) -> Ending | None:
    """Run picklable `work` in another process; return how that process ended, or None if `work`
    returned. An exception does not end the process: the same work in this process raises it again.
    Within a trial no other trial starts, and None is returned."""
    if _Trial.notes is not None:
        return None
    given = pickle.dumps(sys.path) + pickle.dumps((work, seconds))
    command, pipe = [sys.executable, "-c", PROGRAM], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        feeder, process.stdin = process.stdin, None
        assert feeder is not None and process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError), feeder:
                feeder.write(given)
            os.read(process.stdout.fileno(), 1)  # Python has started, and the work begins.
            notes, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as late:
            in_time, notes = False, late.output or b""
        else:
            in_time = True
        finally:
            process.kill()
    last = notes.decode(errors="replace").rpartition("\n")[2]
    if last == "returned":
        return None
    code = process.returncode
    signals = {member.value: member.name for member in signal.Signals}  # without real-time ones
    how = f"exit code {code}" if code >= 0 else signals.get(-code, f"signal {-code}")
    plugin, distribution, hook = [*last.split("\0"), "", ""][:3]
    return Ending(how if in_time else "", (plugin, distribution, hook))


def serve() -> None:
    """Run the pickled work from standard input, report its return through the pipe, and exit."""
    _Trial.notes = os.dup(1)
    os.register_at_fork(after_in_child=_leave_notes)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    with contextlib.suppress(BaseException):
        work, seconds = pickle.load(sys.stdin.buffer)  # noqa: S301 - our parent's
        # The kernel ends this process if the parent has gone and cannot.
        signal.alarm(math.ceil(seconds) + 1)
        os.write(_Trial.notes, b"\n")
        work()
    if _Trial.notes is not None:
        os.write(_Trial.notes, b"\nreturned")
    os._exit(0)


def _leave_notes() -> None:
    if _Trial.notes is not None:
        os.close(_Trial.notes)
        _Trial.notes = None

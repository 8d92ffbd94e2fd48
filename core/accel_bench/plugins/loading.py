"""Import a plugin's class, and survive one that raises, exits, crashes, hangs or imports torch.

What may end the process is done in a copy of it first.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import metadata
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from accel_bench.documents.program import seconds_from
from accel_bench.errors import PluginError
from accel_bench.machine import clock  # noqa: F401 - taken before a plugin is imported
from accel_bench.machine.scheduling import restored_scheduling
from accel_bench.plugin import Plugin
from accel_bench.plugins.shipped import is_shipped

IMPORT_SECONDS = 10.0
"""Limit for the import of a plugin's module, which takes milliseconds when it is light."""

CALL_BYTES = 4096
"""Size of the page in which a copy writes whose code it calls."""


class TookTooLongError(BaseException):
    """Raised by the alarm; no `except Exception` of a plugin swallows it."""


def import_plugin(
    entry: metadata.EntryPoint, label: str, allow_torch: bool, probe: bool = False
) -> type[Plugin[Any]]:
    """Return the class behind an entry point.

    `label` names the plugin and its distribution in errors. With `probe` it is first imported in a
    copy of this process, which may end or hang. Raises PluginError when the import fails, ends the
    process or takes longer than `IMPORT_SECONDS`, when what it finds is no Plugin, and, unless
    `allow_torch`, when it imported torch.
    """
    before, seconds = "torch" in sys.modules, limit_seconds()
    too_long = f"{label} is broken: its import takes more than {seconds:g} s"
    probe = probe and entry.module not in sys.modules
    if ending := ending_in_copy(entry.load, seconds) if probe else None:
        problem = f"{label} is broken: its import ends the process ({ending.how})"
        raise PluginError(problem if ending.how else too_long)
    try:
        with time_limit(seconds):
            kind = entry.load()
    except TookTooLongError:
        raise PluginError(too_long) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PluginError(f"{label} is broken: {_reason(error)}") from error
    if not (isinstance(kind, type) and issubclass(kind, Plugin)):
        raise PluginError(
            f"{label} is broken: {entry.value} is not a subclass of accel_bench.Plugin"
        )
    if not allow_torch and not before and "torch" in sys.modules:
        raise PluginError(
            f"{label} imports torch at module level; import it in the bodies of its hooks"
        )
    return kind


def limit_seconds() -> float:
    """Return how long a plugin's import, or a call of it in the parent, may take.

    The environment can raise the limit on a very slow disk.
    """
    return seconds_from("ACCEL_BENCH_IMPORT_SECONDS", IMPORT_SECONDS)


@contextlib.contextmanager
def restored_environment() -> Iterator[list[str]]:
    """Undo changes to `os.environ` at the end of the block; yield what then lists their names.

    Workers inherit the parent's environment, those of other stacks too, as they do its priority and
    its CPUs, which are put back as well.
    """
    before = dict(os.environ)
    changed: list[str] = []
    try:
        with restored_scheduling():
            yield changed
    finally:
        now = dict(os.environ)
        changed += sorted(n for n in {*before, *now} if before.get(n) != now.get(n))
        for name in changed:
            os.environ.pop(name, None)
        os.environ.update({name: before[name] for name in changed if name in before})


def _reason(error: BaseException) -> str:
    """Describe in one line what the import raised."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} ({error.filename}, line {error.lineno})"
    if isinstance(error, SystemExit):
        return f"its import calls sys.exit({error.code!r})"
    return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TookTooLongError in the block after that many seconds, in the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise TookTooLongError

    previous = signal.signal(signal.SIGALRM, ring)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, previous)


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

"""Import a plugin's class, and survive one that raises, exits, crashes, hangs or imports torch."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from importlib import metadata
from types import FrameType
from typing import Any, NoReturn

from accel_bench.documents.variables import seconds_from
from accel_bench.errors import PluginError
from accel_bench.plugin import Plugin

IMPORT_SECONDS = 10.0
"""Limit for the import of a plugin's module, which takes milliseconds when it is light."""


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
    end = _end_of_import(entry, seconds) if probe and entry.module not in sys.modules else None
    if end is not None:
        raise PluginError(f"{label} is broken: {end}" if end else too_long)
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

    Workers inherit the parent's environment, those of other stacks too.
    """
    before = dict(os.environ)
    changed: list[str] = []
    try:
        yield changed
    finally:
        now = dict(os.environ)
        changed += sorted(n for n in {*before, *now} if before.get(n) != now.get(n))
        for name in changed:
            os.environ.pop(name, None)
        os.environ.update({name: before[name] for name in changed if name in before})


def _end_of_import(entry: metadata.EntryPoint, seconds: float) -> str | None:
    """Import in a forked process; return how that ended it, empty for not in time, else None.

    What the import raises is left to the import in this process to report.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _import_and_leave(entry, writing, seconds)
    os.close(writing)
    try:
        in_time, _, _ = select.select([reading], [], [], seconds)
        returned = bool(in_time) and os.read(reading, 1) != b""
    finally:
        os.close(reading)
        if not in_time:
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if returned or not in_time:
        return None if returned else ""
    how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    return f"its import ends the process ({how})"


def _import_and_leave(entry: metadata.EntryPoint, writing: int, seconds: float) -> NoReturn:
    """Import, say that this returned, and end without doing anything else that the parent does."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        # The kernel ends this process where the parent has gone and cannot.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(math.ceil(seconds) + 1)
        with contextlib.suppress(BaseException):
            entry.load()
        os.write(writing, b"1")
    finally:
        os._exit(0)


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

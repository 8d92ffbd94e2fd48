"""Import of a plugin's class, also if its module raises, exits, crashes, hangs or imports torch."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from importlib import metadata
from types import FrameType
from typing import Any

from accel_bench.documents.program import seconds_from
from accel_bench.errors import PluginError
from accel_bench.machine import clock  # noqa: F401 - taken before a plugin is imported
from accel_bench.machine.scheduling import restored_scheduling
from accel_bench.plugin import Plugin
from accel_bench.plugins.trial import run_in_trial

IMPORT_SECONDS = 10.0
"""Time limit in seconds for the import of a plugin's module, which takes milliseconds if light."""


class TookTooLongError(BaseException):
    """A plugin's code exceeded its time limit; an `except Exception` in it does not catch this."""


def import_plugin(
    entry: metadata.EntryPoint, label: str, allow_torch: bool, probe: bool = False
) -> type[Plugin[Any]]:
    """Return the plugin class of an entry point.

    `label` names the plugin and its distribution in errors. With `probe`, another process imports
    the class first. Raises PluginError if the import fails, ends the process or takes longer than
    `IMPORT_SECONDS`, if the object is no Plugin, and, unless `allow_torch`, if torch was imported.
    """
    before, seconds = "torch" in sys.modules, limit_seconds()
    too_long = f"{label} is broken: its import takes more than {seconds:g} s"
    probe = probe and entry.module not in sys.modules
    if ending := run_in_trial(entry.load, seconds) if probe else None:
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
    """Return the time limit of a plugin's import, or of one call in the parent, in seconds.

    An environment variable can raise the limit for a very slow disk.
    """
    return seconds_from("ACCEL_BENCH_IMPORT_SECONDS", IMPORT_SECONDS)


@contextlib.contextmanager
def restored_environment() -> Iterator[list[str]]:
    """Undo changes of `os.environ` and of the process's priority and CPUs after the `with` block.

    Yields a list, filled with the names of changed variables when the block ends. Workers of all
    stacks inherit the parent's environment.
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
    """Return the message of an import's error as one line."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} ({error.filename}, line {error.lineno})"
    if isinstance(error, SystemExit):
        return f"its import calls sys.exit({error.code!r})"
    return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TookTooLongError if the `with` block takes longer than `seconds`. In any thread but the
    main thread there is no limit."""
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

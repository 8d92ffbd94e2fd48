"""Import one plugin's class, and survive one that raises, exits, hangs or imports torch."""

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

from accel_bench.errors import PluginError
from accel_bench.plugin import Plugin

IMPORT_SECONDS = 10.0
"""Limit for the import of a plugin's module, which takes milliseconds when it is light."""


class _ImportTimeoutError(BaseException):
    """Raised by the alarm; no `except Exception` of a plugin swallows it."""


def import_plugin(entry: metadata.EntryPoint, label: str, allow_torch: bool) -> type[Plugin[Any]]:
    """Return the class behind an entry point.

    `label` names the plugin and its distribution in errors. Raises PluginError when the import
    fails, exits or takes longer than `IMPORT_SECONDS`, when what it finds is no Plugin, and, unless
    `allow_torch`, when it imported torch.
    """
    before = "torch" in sys.modules
    try:
        with _alarm(_import_seconds()):
            kind = entry.load()
    except _ImportTimeoutError:
        raise PluginError(
            f"{label} is broken: its import takes more than {_import_seconds()} s"
        ) from None
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


def _import_seconds() -> float:
    # The environment can raise the limit on a very slow disk.
    return float(os.environ.get("ACCEL_BENCH_IMPORT_SECONDS", IMPORT_SECONDS))


def _reason(error: BaseException) -> str:
    """Describe in one line what the import raised."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} ({error.filename}, line {error.lineno})"
    if isinstance(error, SystemExit):
        return f"its import calls sys.exit({error.code!r})"
    return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Interrupt the block after that many seconds, in the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise _ImportTimeoutError

    previous = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)

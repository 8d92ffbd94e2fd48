"""Log stored runs to the trackers of a plan, in the parent, between runs."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from accel_bench.analysis.schema import Summary
from accel_bench.errors import HookError
from accel_bench.plugins.active import ActivePlugin, ActivePlugins
from accel_bench.plugins.loading import restored_environment
from accel_bench.plugins.manager import TRACKING
from accel_bench.plugins.validation import marked_methods
from accel_bench.result import Result
from accel_bench.runner.observers import call_bounded

PATIENCE_SECONDS = 120.0
"""How long a tracker may take for a run: its first call imports its library."""

HURRIED_SECONDS = 5.0
"""The same once Ctrl-C ends the session."""


class Trackers:
    """The trackers of one session. What they raise is a warning, one for each of them."""

    def __init__(
        self, active: ActivePlugins | None, results_folder: Path, warn: Callable[[str], None]
    ) -> None:
        self._active = active
        self._folder = results_folder
        self._warn = warn
        self._failed: set[str] = set()
        self._lost: set[str] = set()
        self._lock = threading.Lock()

    def record(self, result: Result) -> None:
        """Log a run that is stored."""
        for plugin in self._active.plugins if self._active else ():
            self._call(plugin, result=result, summary=None)

    def finish(self, summarize: Callable[[], Summary]) -> None:
        """Log the comparison to the trackers that take one."""
        taking = [one for one in (self._active.plugins if self._active else ()) if _takes_one(one)]
        summary = summarize() if taking else None
        for plugin in taking:
            self._call(plugin, result=None, summary=summary)

    def _call(self, plugin: ActivePlugin, **arguments: Any) -> None:
        """Call a tracker; one that did not come back in time is not called again."""
        assert self._active is not None
        if plugin.name in self._lost:
            return
        call = partial(
            self._active.call_plugin, plugin, TRACKING, results_folder=self._folder, **arguments
        )
        # Points that run at once share the trackers.
        with self._lock, restored_environment():
            try:
                call_bounded(plugin, _patience(), call, TRACKING)
            except HookError as error:
                if error.__cause__ is None:  # it raised nothing: it hangs
                    self._lost.add(plugin.name)
                self._note(plugin, error)

    def _note(self, plugin: ActivePlugin, error: HookError) -> None:
        if plugin.name not in self._failed:
            self._failed.add(plugin.name)
            self._warn(f"{error}; the runs are stored all the same")


def _patience() -> float:
    """Return how long to wait: while a KeyboardInterrupt is on its way up, a few seconds."""
    return HURRIED_SECONDS if isinstance(sys.exc_info()[1], KeyboardInterrupt) else PATIENCE_SECONDS


def _takes_one(plugin: ActivePlugin) -> bool:
    """Return whether a tracker's method takes a summary."""
    method = dict(marked_methods(type(plugin.instance)))[TRACKING]
    return "summary" in inspect.signature(method).parameters

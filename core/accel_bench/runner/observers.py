"""Calls of observers, which watch an attempt's ranks from the parent process, and of trackers."""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from accel_bench.analysis.schema import Summary
from accel_bench.errors import AccelBenchError, HookError
from accel_bench.job import Job
from accel_bench.launcher import Observer, RankProcess
from accel_bench.plugins.active import (
    ActivePlugin,
    ActivePlugins,
    refuse_unreadable,
    wrong_return_type,
)
from accel_bench.plugins.loading import restored_environment
from accel_bench.plugins.manager import TRACKING
from accel_bench.plugins.validation import marked_methods
from accel_bench.result import Metric, RankResult, Result

HOOK = "observe_ranks"

PATIENCE_SECONDS = 10.0
"""Seconds that an observer may take to start or to finish; no heartbeat is read meanwhile."""

HURRIED_SECONDS = 1.0
"""Seconds that an observer may take after Ctrl-C."""

TRACKER_SECONDS = 120.0
"""Seconds that a tracker may take for a run: its first call imports its library."""

HURRIED_TRACKER_SECONDS = 5.0
"""Seconds that a tracker may take once Ctrl-C ends the session."""


class Observation:
    """Calls of all observers of one attempt; each started one is finished, even if others fail."""

    def __init__(self, job: Job, active: ActivePlugins) -> None:
        self._job = job
        self._active = active
        self._observers: list[tuple[ActivePlugin, Observer]] = []

    def start(self, ranks: Sequence[RankProcess]) -> None:
        """Start the observer of every plugin. Raises HookError that names a plugin that fails."""
        for plugin in self._active.plugins:
            call = partial(self._active.call_plugin, plugin, HOOK, job=self._job, ranks=ranks)
            observer = call_bounded(plugin, PATIENCE_SECONDS, call)
            if observer is None:
                continue
            if not callable(getattr(observer, "finish", None)):
                raise wrong_return_type(plugin, HOOK, "an Observer or None", observer)
            self._observers.append((plugin, observer))

    def live(self) -> str:
        """Return the observers' current texts for the progress line, as one text."""
        return "  ".join(filter(None, (_live(observer) for _, observer in self._observers)))

    def finish(
        self, results: Mapping[int, RankResult], hurried: bool
    ) -> tuple[tuple[Metric, ...], AccelBenchError | None]:
        """Return the metrics of all observers, and the first error of an observer or None.
        `results` are results by rank; `hurried`, set after Ctrl-C, shortens the time limit."""
        seconds = HURRIED_SECONDS if hurried else PATIENCE_SECONDS
        metrics: list[Metric] = []
        first: AccelBenchError | None = None
        for plugin, observer in self._observers:
            try:
                metrics += _finish(plugin, observer, results, seconds)
            except AccelBenchError as error:
                first = first or error
        return tuple(metrics), first


def _live(observer: Observer) -> str:
    with contextlib.suppress(Exception):
        return str(getattr(observer, "live", ""))
    return ""


def _finish(
    plugin: ActivePlugin, observer: Observer, results: Mapping[int, RankResult], seconds: float
) -> list[Metric]:
    """Return the metrics of an observer. Raises HookError if it returns anything but metrics."""

    def call() -> Any:
        value: Any = observer.finish(results)
        return list(value) if isinstance(value, Iterable) else value

    metrics = call_bounded(plugin, seconds, call)
    if not isinstance(metrics, list) or not all(isinstance(item, Metric) for item in metrics):
        raise wrong_return_type(plugin, HOOK, "Metric objects from finish", metrics)
    for metric in metrics:
        refuse_unreadable(plugin, HOOK, metric.model_dump(), metric.name)
    return [metric.model_copy(update={"plugin": plugin.name}) for metric in metrics]


def call_bounded(
    plugin: ActivePlugin, seconds: float, call: Callable[[], Any], hook: str = HOOK
) -> Any:
    """Return the value of `call`, a plugin's code, run in a thread that is abandoned after
    `seconds`. Raises HookError after that time, and for any error of the code, even a
    KeyboardInterrupt: Ctrl-C reaches only the main thread. `hook` names the code in errors."""
    outcome: list[tuple[Any, BaseException | None]] = []

    def work() -> None:
        try:
            outcome.append((call(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=work, name=f"{hook} of {plugin.name}", daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        problem = f"it did not come back within {seconds:g} s"
        raise HookError(plugin.name, plugin.distribution, hook, problem)
    value, error = outcome[0]
    if isinstance(error, HookError):
        raise error
    if error is not None:
        problem = ": ".join(filter(None, (type(error).__name__, str(error))))
        raise HookError(plugin.name, plugin.distribution, hook, problem) from error
    return value


class Trackers:
    """Calls of a session's trackers, plugins that log runs to a service; errors become warnings."""

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
        """Pass a stored run to all trackers."""
        for plugin in self._active.plugins if self._active else ():
            self._call(plugin, result=result, summary=None)

    def finish(self, summarize: Callable[[], Summary]) -> None:
        """Call each tracker that takes a `summary` with the comparison from `summarize`."""
        taking = [
            plugin
            for plugin in (self._active.plugins if self._active else ())
            if _takes_one(plugin)
        ]
        summary = summarize() if taking else None
        for plugin in taking:
            self._call(plugin, result=None, summary=summary)

    def _call(self, plugin: ActivePlugin, **arguments: Any) -> None:
        """Call a tracker with `arguments`, unless an earlier call has reached the time limit."""
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
    """Return the time limit of a tracker in seconds, a short one while Ctrl-C ends the session."""
    hurried = isinstance(sys.exc_info()[1], KeyboardInterrupt)
    return HURRIED_TRACKER_SECONDS if hurried else TRACKER_SECONDS


def _takes_one(plugin: ActivePlugin) -> bool:
    method = dict(marked_methods(type(plugin.instance)))[TRACKING]
    return "summary" in inspect.signature(method).parameters

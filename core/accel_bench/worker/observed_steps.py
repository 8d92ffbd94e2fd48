"""Extra steps at the end of a run that plugins observe, a few steps for each plugin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from accel_bench.engine import Batch, PhaseName
from accel_bench.errors import HookError
from accel_bench.plugins.active import (
    OBSERVERS,
    ActivePlugin,
    ActivePlugins,
    attribute_errors_to,
    wrong_return_type,
)
from accel_bench.result import Metric
from accel_bench.run_context import Run, StepObserver
from accel_bench.worker.after_window import StepStage
from accel_bench.worker.record import RankRecord

HOOK = "observe_steps"


class ObservedSteps(StepStage):
    """Extra steps at the end of a run: each plugin's observer in turn watches a few of them."""

    phase = "observe_steps"

    def __init__(
        self,
        active: ActivePlugins,
        run: Run,
        record: RankRecord,
        synchronize: Callable[[], None],
    ) -> None:
        self._active = active
        self._run = run
        self._record = record
        self._synchronize = synchronize
        self._waiting: list[tuple[ActivePlugin, StepObserver]] = []
        self._left = 0

    def start(self) -> bool:
        """Call all `observe_steps` hooks, start the first observer; return whether there is one."""
        for plugin, observer in self._active.call_all(HOOK, run=self._run):
            if observer is not None:
                self._waiting.append((plugin, _checked(plugin, observer)))
        return self._begin()

    def end_step(self, batches: Sequence[Batch], loss: Any) -> bool:
        """End a step; return whether an observer needs another step."""
        plugin, observer = self._waiting[0]
        self._left -= 1
        if plugin.slot == OBSERVERS:
            self._record.profiled_steps += 1
        else:
            self._record.observed_steps += 1
        with self._of(plugin):
            observer.end_step(batches)
        if self._left:
            return True
        self._synchronize()
        with self._of(plugin):
            result: Any = observer.finish()
            # A metric is a model, which yields its fields.
            several = isinstance(result, Iterable) and not isinstance(result, Metric)
            metrics = list(result) if several else [result]
        for metric in metrics:
            if not isinstance(metric, Metric):
                raise wrong_return_type(plugin, HOOK, "Metric objects from finish", metric)
        self._record.metrics += (m.model_copy(update={"plugin": plugin.name}) for m in metrics)
        del self._waiting[0]
        return self._begin()

    def mark(self, phase: PhaseName) -> None:
        """Call the current observer's method `mark`, if it has one, at the end of a phase."""
        plugin, observer = self._waiting[0]
        if mark := getattr(observer, "mark", None):
            with self._of(plugin):
                mark(phase)

    def fail(self, error: Exception) -> bool:
        """Tell the current observer that its step failed; return whether the run's result stands.

        It stands if the observer's plugin is no part of the experiment.
        """
        if not self._left:
            return False
        plugin, observer = self._waiting[0]
        if fail := getattr(observer, "fail", None):
            with self._of(plugin):
                fail(error)
        return plugin.slot == OBSERVERS and not isinstance(error, HookError)

    def _begin(self) -> bool:
        if not self._waiting:
            return False
        plugin, observer = self._waiting[0]
        self._left = observer.steps
        self._synchronize()
        with self._of(plugin):
            observer.start()
        return True

    @contextmanager
    def _of(self, plugin: ActivePlugin) -> Iterator[None]:
        with attribute_errors_to(plugin, HOOK), self._run.calling(plugin):
            yield


def _checked(plugin: ActivePlugin, found: Any) -> StepObserver:
    """Return `found`, the value of a hook, if it is an observer. Raises HookError if it is not."""
    if not all(callable(getattr(found, name, None)) for name in ("start", "end_step", "finish")):
        raise wrong_return_type(plugin, HOOK, "a StepObserver or None", found)
    steps = getattr(found, "steps", None)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        problem = f"`steps` of its observer is {steps!r}; it must be a whole number from 1"
        raise HookError(plugin.name, plugin.distribution, HOOK, problem)
    observer: StepObserver = found
    return observer

"""The steps after the measured window: stages that compare, split into phases, observe or profile
them. None is part of what is measured, and none of the loss curve of the window."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from accel_bench.analysis.checks.pace import pace_figures, too_fast
from accel_bench.engine import Batch, PhaseName
from accel_bench.machine.clock import monotonic
from accel_bench.result import PhaseSplit, Sample, Window
from accel_bench.scenario.settings import PACE_STEPS
from accel_bench.worker.clocks import HostClock, counted, samples_of

PATIENCE_SECONDS = 2.0
"""Least time for which slow steps are repeated, since other work may have begun."""

PATIENCE_STEPS, MOST_PACE_STEPS = 10, 100
"""Least and largest number of such steps."""


class Stage(ABC):
    """Steps of one kind that a stopwatch takes after the window, stage by stage."""

    phase: ClassVar[str]
    """Phase of the worker that the heartbeat shows meanwhile."""

    @abstractmethod
    def start(self) -> bool:
        """Begin, between two steps, while the device is idle; return whether a step is needed."""

    def mark(self, phase: PhaseName) -> None:  # noqa: B027 - most split no step
        """End a phase of a step, where the engine marks them."""

    @abstractmethod
    def end_step(self, batches: Sequence[Batch], loss: Any) -> bool:
        """End a step of these micro-batches; return whether another one is needed."""


class PaceSteps(Stage):
    """Takes whole steps and waits for each, to see whether those of the window took as long."""

    phase = "phases"

    def __init__(
        self,
        clock: HostClock,
        agree: Callable[[bool], bool],
        nodes_made: Callable[[], int] = lambda: 0,
    ) -> None:
        self.window: Window | None = None
        """The measured window, once it is kept."""

        self.samples: list[Sample] = []
        self.nodes: list[int] = []
        """Nodes that autograd made in each of them."""

        self._made = 0
        self._nodes_made = nodes_made
        self._clock = clock
        self._agree = agree
        self._began = 0.0

    def start(self) -> bool:
        """Mark the begin of the first step."""
        self._began = monotonic()
        self._made = self._nodes_made()
        self._clock.mark()
        return True

    def end_step(self, batches: Sequence[Batch], loss: Any) -> bool:
        """End a step, and wait for it; ranks agree on whether they take another one."""
        lap = counted(batches), float(loss)
        self._clock.synchronize()
        self._clock.mark()
        self.samples += samples_of(len(self.samples), self._clock.read(), [lap])
        before, self._made = self._made, self._nodes_made()
        self.nodes.append(self._made - before)
        again = len(self.samples) < PACE_STEPS or not self._agree(self._has_enough())
        self._clock.mark()
        return again

    def reasons(self) -> list[str]:
        """Return reasons for `invalid`: the window was too fast for the steps around it."""
        return [*pace_figures(self.window, self.samples)] if self.window else []

    def _has_enough(self) -> bool:
        """Return whether a step was as fast as the window's, or it is no use to wait for one."""
        taken = len(self.samples)
        window = self.window.samples if self.window else ()
        if taken >= MOST_PACE_STEPS or not window or not any(too_fast(window, self.samples)):
            return True
        return taken >= PATIENCE_STEPS and monotonic() - self._began >= PATIENCE_SECONDS


class PhaseSplitter(Stage):
    """Splits steps into the phases that the engine marks, where it has marked some before."""

    phase = "phases"

    def __init__(self, clock: HostClock, steps: int) -> None:
        self.split: PhaseSplit | None = None
        self._clock = clock
        self._steps = steps
        self._marked = False
        self._names: list[PhaseName | None] = []

    def notice(self, phase: PhaseName) -> None:
        """Remember in the warm-up that the engine marks phases: there is something to split."""
        self._marked = True

    def start(self) -> bool:
        """Mark the begin of the first step, where there is something to split."""
        if self._marked:
            self._clock.mark()
        return self._marked

    def mark(self, phase: PhaseName | None) -> None:
        """End a phase; None is what is left of a step when it ends."""
        self._clock.mark()
        self._names.append(phase)

    def end_step(self, batches: Sequence[Batch], loss: Any) -> bool:
        """End a step that is split; after the last one, split them."""
        self.mark(None)
        if self._names.count(None) < self._steps:
            return True
        self._clock.synchronize()
        host, device = self._clock.read()
        self.split = split_steps(self._names, host if device is None else device)
        return False


def split_steps(names: Sequence[PhaseName | None], seconds: Sequence[float]) -> PhaseSplit:
    """Add up what lies between consecutive marks, and take the step of median duration.

    `names[i]` is the phase that the mark after `seconds[i]` ended, None for the end of a step: what
    lies between the last mark of a step and its end belongs to no phase, but to the step. One whole
    step is taken, since medians of the phases need not add up to the median of the steps.
    """
    steps: list[dict[PhaseName | None, float]] = [{}]
    for name, spent in zip(names, seconds, strict=True):
        steps[-1][name] = steps[-1].get(name, 0.0) + spent
        if name is None:
            steps.append({})
    steps.pop()
    steps.sort(key=lambda step: sum(step.values()))
    middle = steps[(len(steps) - 1) // 2]
    return PhaseSplit(
        steps=len(steps),
        step_seconds=sum(middle.values()),
        seconds={name: spent for name, spent in middle.items() if name is not None},
    )

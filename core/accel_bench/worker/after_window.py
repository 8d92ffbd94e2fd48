"""Stages of steps after the measured window, which compare, split into phases, observe or profile.
No figure of the window includes them."""

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
"""Seconds for which slow steps are at least repeated, since other work may disturb them."""

PATIENCE_STEPS, MOST_PACE_STEPS = 10, 100
"""Least and largest number of repeated steps."""


class StepStage(ABC):
    """Stage of steps after the window, taken for one purpose."""

    phase: ClassVar[str]
    """Phase of the worker that the heartbeat shows during the stage."""

    @abstractmethod
    def start(self) -> bool:
        """Begin the stage between two steps, on an idle device; return whether it needs a step."""

    def mark(self, phase: PhaseName) -> None:  # noqa: B027 - most split no step
        """End a phase of a step, as marked by the engine."""

    @abstractmethod
    def end_step(self, batches: Sequence[Batch], loss: Any) -> bool:
        """End a step with its micro-batches; return whether the stage needs another step."""


class PaceSteps(StepStage):
    """Stage of steps, each synchronized, whose durations check those of the window's steps."""

    phase = "phases"

    def __init__(
        self,
        clock: HostClock,
        agree: Callable[[bool], bool],
        nodes_made: Callable[[], int] = lambda: 0,
    ) -> None:
        self.window: Window | None = None
        """Measured window, set once it is kept."""

        self.samples: list[Sample] = []
        self.nodes: list[int] = []
        """Number of autograd nodes of each step of the stage."""

        self._made = 0
        self._nodes_made = nodes_made
        self._clock = clock
        self._agree = agree
        self._began = 0.0

    def start(self) -> bool:
        """Mark the beginning of the first step."""
        self._began = monotonic()
        self._made = self._nodes_made()
        self._clock.mark()
        return True

    def end_step(self, batches: Sequence[Batch], loss: Any) -> bool:
        """End a step and synchronize; return whether all ranks agree to take another."""
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
        """Return reasons for `invalid`: steps of the window too fast compared with the stage's."""
        return [*pace_figures(self.window, self.samples)] if self.window else []

    def _has_enough(self) -> bool:
        """Return whether a step was as fast as the window's, or enough other steps were taken."""
        taken = len(self.samples)
        window = self.window.samples if self.window else ()
        if taken >= MOST_PACE_STEPS or not window or not any(too_fast(window, self.samples)):
            return True
        return taken >= PATIENCE_STEPS and monotonic() - self._began >= PATIENCE_SECONDS


class PhaseSplitter(StepStage):
    """Stage that splits steps into phases, if the engine has marked phases before."""

    phase = "phases"

    def __init__(self, clock: HostClock, steps: int) -> None:
        self.split: PhaseSplit | None = None
        self._clock = clock
        self._steps = steps
        self._marked = False
        self._names: list[PhaseName | None] = []

    def notice(self, phase: PhaseName) -> None:
        """Note during warm-up that the engine marks phases."""
        self._marked = True

    def start(self) -> bool:
        """Mark the beginning of the first step; return whether the engine marks phases."""
        if self._marked:
            self._clock.mark()
        return self._marked

    def mark(self, phase: PhaseName | None) -> None:
        """End a phase; None stands for the time after a step's last phase."""
        self._clock.mark()
        self._names.append(phase)

    def end_step(self, batches: Sequence[Batch], loss: Any) -> bool:
        """End a step; after the stage's last step compute the split."""
        self.mark(None)
        if self._names.count(None) < self._steps:
            return True
        self._clock.synchronize()
        host, device = self._clock.read()
        self.split = split_steps(self._names, host if device is None else device)
        return False


def split_steps(names: Sequence[PhaseName | None], seconds: Sequence[float]) -> PhaseSplit:
    """Return the seconds by phase of the step of median duration, from consecutive marks.

    `names[i]` is the phase that the mark after `seconds[i]` ended; None for the end of a step,
    since the time after a step's last mark belongs to no phase. One whole step is chosen, since
    medians of the phases need not add up to the median of the steps.
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

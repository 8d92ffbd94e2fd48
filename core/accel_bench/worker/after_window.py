"""Stages: groups of extra steps after the measured window (the timed steps of a run), for checks,
for phases of a step and for observers. No result of the window includes these steps."""

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
"""Least seconds for which slow steps are repeated, since other work may have disturbed them."""

PATIENCE_STEPS, MOST_PACE_STEPS = 10, 100
"""Number of steps from which slow steps may be accepted, and largest number of all steps."""


class StepStage(ABC):
    """Base class of a stage: a group of extra steps after the measured window, for one purpose."""

    phase: ClassVar[str]
    """Phase of the worker that the heartbeat shows during the stage."""

    @abstractmethod
    def start(self) -> bool:
        """Begin the extra steps on an idle device; return whether there is a first one."""

    def mark(self, phase: PhaseName) -> None:  # noqa: B027 - most split no step
        """Handle the end of a phase of a step, such as forward, when the engine states it."""

    @abstractmethod
    def end_step(self, batches: Sequence[Batch], loss: Any) -> bool:
        """Handle the end of an extra step; return whether another one is needed."""


class PaceSteps(StepStage):
    """Extra steps that wait for the device, to find out whether measured steps were too fast."""

    phase = "phases"

    def __init__(
        self,
        clock: HostClock,
        agree: Callable[[bool], bool],
        nodes_made: Callable[[], int] = lambda: 0,
    ) -> None:
        self.window: Window | None = None
        """Measured window; None until it has ended."""

        self.samples: list[Sample] = []
        self.nodes: list[int] = []
        """Number of autograd nodes of each step of the stage."""

        self._made = 0
        self._nodes_made = nodes_made
        self._clock = clock
        self._agree = agree
        self._began = 0.0

    def start(self) -> bool:
        """Note the start time of the first step; return True, since a step is always needed."""
        self._began = monotonic()
        self._made = self._nodes_made()
        self._clock.mark()
        return True

    def end_step(self, batches: Sequence[Batch], loss: Any) -> bool:
        """End a step and wait for the device; return whether any rank needs another step."""
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
        """Return reasons for `invalid`: measured steps were far faster than these extra steps."""
        return [*pace_figures(self.window, self.samples)] if self.window else []

    def _has_enough(self) -> bool:
        """Return whether a step was as fast as measured ones, or enough slow ones were taken."""
        count = len(self.samples)
        window = self.window.samples if self.window else ()
        if count >= MOST_PACE_STEPS or not window or not any(too_fast(window, self.samples)):
            return True
        return count >= PATIENCE_STEPS and monotonic() - self._began >= PATIENCE_SECONDS


class PhaseSplitter(StepStage):
    """Extra steps after the window with timed phases, if the engine states the phases' ends."""

    phase = "phases"

    def __init__(self, clock: HostClock, steps: int) -> None:
        self.split: PhaseSplit | None = None
        self._clock = clock
        self._steps = steps
        self._marked = False
        self._names: list[PhaseName | None] = []

    def notice(self, phase: PhaseName) -> None:
        """Note, during warm-up, that the engine states the ends of phases."""
        self._marked = True

    def start(self) -> bool:
        """Note the time at which the first step begins; return whether the engine states phases."""
        if self._marked:
            self._clock.mark()
        return self._marked

    def mark(self, phase: PhaseName | None) -> None:
        """Note the time at the end of `phase`, or at the end of the step if `phase` is None."""
        self._clock.mark()
        self._names.append(phase)

    def end_step(self, batches: Sequence[Batch], loss: Any) -> bool:
        """End a step; return whether another is needed, and else compute the seconds by phase."""
        self.mark(None)
        if self._names.count(None) < self._steps:
            return True
        self._clock.synchronize()
        host, device = self._clock.read()
        self.split = split_steps(self._names, host if device is None else device)
        return False


def split_steps(names: Sequence[PhaseName | None], seconds: Sequence[float]) -> PhaseSplit:
    """Return the seconds by phase of the step with the median duration.

    `seconds` are the times between successive ends of phases or steps, and `names` the phases that
    they belong to; None for the time from a step's last phase to its end. One whole step is chosen,
    since the medians of phases need not add up to the median step.
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

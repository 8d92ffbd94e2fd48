"""The steps after the measured window: split into phases, then observed, profiled, and observed by
plugins. None is part of what is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from accel_bench.engine import Batch, PhaseName
from accel_bench.job import HEARTBEAT_STEP
from accel_bench.result import PhaseSplit
from accel_bench.worker.clocks import HostClock
from accel_bench.worker.heartbeat import Heartbeat

if TYPE_CHECKING:
    from accel_bench.worker.communication import CommunicationProbe
    from accel_bench.worker.learning import LearningSteps
    from accel_bench.worker.observed_steps import ObservedSteps
    from accel_bench.worker.profile.window import ProfileWindow


class StepsAfterWindow:
    """The part of the stopwatch that begins when a window was kept, with `_split_phases`."""

    clock: HostClock
    heartbeat: Heartbeat
    phase_steps: int
    learning: LearningSteps | None
    communication: CommunicationProbe | None
    profile: ProfileWindow | None
    observed: ObservedSteps | None
    running: bool
    lap: Callable[[Sequence[Batch], Any], None]
    mark: Callable[[PhaseName], None]
    phases: PhaseSplit | None
    _page: Any
    _marks_phases: bool
    _done: int
    _names: list[PhaseName | None]

    def _learn(self) -> None:
        """Evaluate, and go on training for the learning curve, where one is asked for."""
        if self.learning is not None:
            self.heartbeat.phase = self.learning.phase
            self.lap, self.mark = self._learning_lap, lambda phase: None
            self.clock.synchronize()
            if self.learning.start():
                return
        self._split_phases()

    def _learning_lap(self, batches: Sequence[Batch], loss: Any) -> None:
        """End a step of the learning curve."""
        assert self.learning is not None
        again = self.learning.end_step(batches, loss)
        self._done += 1
        self._page[HEARTBEAT_STEP] = self._done
        if not again:
            self._split_phases()

    def _split_phases(self) -> None:
        """Split a few more steps, where the engine marks phases."""
        if self.phase_steps and self._marks_phases:
            self.heartbeat.phase = "phases"
            self.lap, self.mark = self._phase_lap, self._phase_mark
            self.clock.synchronize()
            self.clock.mark()
        else:
            self._observe_communication()

    def _phase_mark(self, phase: PhaseName | None) -> None:
        """End a phase; None is what is left of a step when it ends."""
        self.clock.mark()
        self._names.append(phase)

    def _phase_lap(self, batches: Sequence[Batch], loss: Any) -> None:
        """End a step that is split. It trains the model too, but is no part of the loss curve."""
        self._phase_mark(None)
        self._done += 1
        self._page[HEARTBEAT_STEP] = self._done
        if self._names.count(None) == self.phase_steps:
            self.clock.synchronize()
            host, device = self.clock.read()
            self.phases = split_steps(self._names, host if device is None else device)
            self._observe_communication()

    def _observe_communication(self) -> None:
        """Take the last steps under observation, where there is anything to observe."""
        if self.communication is None or not self.phase_steps:
            self._profile_steps()
            return
        self.heartbeat.phase = "communication"
        self.lap, self.mark = self._communication_lap, lambda phase: None
        self.clock.synchronize()
        self.communication.start()

    def _communication_lap(self, batches: Sequence[Batch], loss: Any) -> None:
        """End a step whose collectives were timed; it is no part of the loss curve either."""
        assert self.communication is not None
        steps = self.communication.end_step()
        self._done += 1
        self._page[HEARTBEAT_STEP] = self._done
        if steps == self.phase_steps:
            self.communication.stop()
            self._profile_steps()

    def _profile_steps(self) -> None:
        """Take the last steps under the profiler, where a profile is requested."""
        if self.profile is None:
            self._observe_steps()
            return
        self.heartbeat.phase = "profile"
        self.lap, self.mark = self._profile_lap, self.profile.mark
        self.clock.synchronize()
        self.profile.start()

    def _profile_lap(self, batches: Sequence[Batch], loss: Any) -> None:
        """End a step that was profiled; it is no part of the loss curve either."""
        assert self.profile is not None
        self._done += 1
        self._page[HEARTBEAT_STEP] = self._done
        if not self.profile.end_step(batches):
            self._observe_steps()

    def _observe_steps(self) -> None:
        """Take further steps for the plugins that observe some, each its own."""
        if self.observed is None:
            self.running = False
            return
        self.heartbeat.phase = "observe_steps"
        self.lap, self.mark = self._observed_lap, lambda phase: None
        self.running = self.observed.start()

    def _observed_lap(self, batches: Sequence[Batch], loss: Any) -> None:
        """End a step that a plugin observes; it is no part of the loss curve either."""
        assert self.observed is not None
        self._done += 1
        self._page[HEARTBEAT_STEP] = self._done
        self.running = self.observed.end_step(batches)


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

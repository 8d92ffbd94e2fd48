"""Verification of a run that trains with torch: checks of its first step and of measured steps.

State is read in the warm-up, or after a measured window has closed, and never within a window. The
first step's state is read again in a step after the window, which no result includes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from accel_bench.engine import Batch
from accel_bench.errors import InvalidRunError
from accel_bench.job import Job
from accel_bench.result import Window
from accel_bench.run_context import Run
from accel_bench.worker.after_window import StepStage
from accel_bench.worker.flops.trace import read_workload
from accel_bench.worker.record import RankRecord
from accel_bench.worker.verify.counted_tokens import CountedTokens
from accel_bench.worker.verify.drift import TrainingState, changes, read_dropout, read_state
from accel_bench.worker.verify.effective import read_effective, record_effective
from accel_bench.worker.verify.forward_pass import ForwardPass, Watch
from accel_bench.worker.verify.gradient_flow import FirstStepProbe
from accel_bench.worker.verify.optimizer_steps import (
    OptimizerStepCounter,
    Reading,
    node_reasons,
    progress_reasons,
    read_progress,
    window_reasons,
)
from accel_bench.worker.verify.update import UpdateSketch


class LaterStep(Watch, StepStage):
    """One extra step after the measured window that repeats checks of the first step."""

    phase = "check"

    def __init__(self, run: Run, probe: FirstStepProbe, tokens: CountedTokens) -> None:
        self.degraded: list[str] = []
        self.invalid: list[str] = []
        """Reasons for `invalid` found in the later step; empty before that step."""

        self.steps = 0
        self._run, self._probe, self._tokens = run, probe, tokens
        self._forward = ForwardPass(run)
        self._handles = []
        self._dropout: dict[str, int] = {}

    def start(self) -> bool:
        """Register the hooks on the model again; return True, since one step is needed."""
        self._dropout = read_dropout(self._run.unwrapped_model)
        self._handles = self._forward.watch()
        self._tokens.watch()
        return True

    def end_step(self, batches: Sequence[Batch], loss: Any) -> bool:
        """Compare the step with the first step; return False: no other step is needed."""
        self.remove()
        self.steps += 1
        changed = self._probe.forward.changes(self._forward, self._dropout)
        self.degraded, self.invalid = changed
        counts = self._tokens.reasons(batches)
        self.invalid += [f"a step after the window {reason}" for reason in counts]
        return False

    def remove(self) -> None:
        """Remove all hooks of these checks."""
        self._tokens.remove()
        super().remove()


class Verification:
    """Checks of a run that trains, from its first step on; what they find is stored in `record`.

    State is read at the end of each warm-up step, and never in the measured window.
    """

    def __init__(self, run: Run, record: RankRecord, job: Job) -> None:
        self._run, self._record = run, record
        self._probe = FirstStepProbe(run)
        self._counted = CountedTokens(run)
        self._first: TrainingState | None = None
        self._counter = OptimizerStepCounter(run.model.parameters())
        self._readings: list[Reading] = []
        self.later = LaterStep(run, self._probe, self._counted)
        self._update = UpdateSketch(run, job.update_path(), job.update_bytes)

    def between_laps(self, lap: Callable[..., None]) -> Callable[..., None]:
        """Return a function that reads state and then calls `lap`, which ends a warm-up step."""

        def watched_lap(*arguments: Any) -> None:
            if not self._probe.frozen:
                self._first = self._first or read_state(self._run)
            self._probe.end_step()
            self._counter.see_step()
            if not self._readings:
                self.read_steps(1)
            lap(*arguments)

        return self._counted.at_first_lap(watched_lap)

    def before_window(self, strategy: str | None, synchronizations: int | None) -> None:
        """Record workload and effective configuration, before the first window opens.

        The arguments are as in `GenerationCheck.before_window`. Raises InvalidRunError if the
        configuration contradicts the scenario, or no optimizer has taken a step.
        """
        run, probe, record = self._run, self._probe, self._record
        probe.remove()
        run.workload = record.workload = read_workload(run, self._counted.first_batch)
        record.workload_reason = run.workload_reason
        effective = read_effective(run, probe, record.environment, synchronizations)
        record_effective(run, record, effective, strategy)
        probe.check()

    def read_steps(self, steps: int) -> None:
        """Record the weights' version counters after `steps` steps, at each end of a window."""
        self._readings.append(self._counter.read(steps, self._optimizers()))

    def after_window(self, window: Window) -> list[str]:
        """Record optimizer steps and changes of state; return reasons why the run is `invalid`."""
        steps = window.samples[-1].step + 1
        self.read_steps(steps)
        progress = read_progress(self._optimizers(), steps, self._counter)
        degraded, invalid = progress_reasons(self._run.scenario, progress)
        reasons = window_reasons(self._run.scenario, self._counter, self._readings)
        invalid = invalid or [*reasons]
        flow = self._probe.flow
        if self._first is not None and flow is not None:
            changed = changes(self._first, read_state(self._run), flow.gradient_norms)
            degraded, invalid = [*degraded, *changed[0]], [*invalid, *changed[1]]
        update = {"optimizer_progress": progress}
        self._record.effective = self._record.effective.model_copy(update=update)
        self._record.degraded += degraded
        return invalid

    def after_all_steps(self, nodes: Sequence[int]) -> None:
        """Record the checks of later steps. Raises InvalidRunError if they contradict the run.

        It is called once no other rank waits for this one in a step; `nodes` are the numbers of
        autograd nodes of later steps without observers.
        """
        self._record.checked_steps = self.later.steps
        self._record.degraded += self.later.degraded
        opened, ended = self._readings[-2:]
        less = node_reasons(self._counter.nodes, opened, ended, nodes)
        if invalid := [*self.later.invalid, *less]:
            raise InvalidRunError(invalid)

    def sketch_update(self, steps: int) -> None:
        """Record the weights' change at the end of the first window, up to which all runs take
        equally many steps."""
        if self._record.update is None:
            self._record.update = self._update.finish(steps)

    def remove(self) -> None:
        """Remove all hooks; record the first step's gradients, even if they made the run fail."""
        self.later.remove()
        self._update.close()
        self._probe.remove()
        flow = {"gradient_flow": self._probe.flow}
        self._record.effective = self._record.effective.model_copy(update=flow)

    def _optimizers(self) -> list[Any]:
        return list(self._probe.optimizers.values()) or [self._run.optimizer]

"""Verify a run that trains with torch: its first step, and all of it up to the end of the window.

Everything here happens in the warm-up, or after a window has closed: nothing within one. What the
first step showed is read once more in a step after the window, which is no part of any figure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from accel_bench.engine import Batch
from accel_bench.errors import InvalidRunError
from accel_bench.job import Job
from accel_bench.result import Window
from accel_bench.run_context import Run
from accel_bench.worker.after_window import Stage
from accel_bench.worker.flops.trace import read_workload
from accel_bench.worker.record import RankRecord
from accel_bench.worker.verify.counted_tokens import CountedTokens
from accel_bench.worker.verify.drift import read_dropout
from accel_bench.worker.verify.effective import differences, read_effective, used_device
from accel_bench.worker.verify.forward_pass import ForwardPass
from accel_bench.worker.verify.gradient_flow import FirstStepProbe
from accel_bench.worker.verify.update import UpdateSketch
from accel_bench.worker.verify.witness import WindowWitness


class LaterStep(Stage):
    """Takes one step after the window, and reads in it what was read in the first one."""

    phase = "check"

    def __init__(self, run: Run, probe: FirstStepProbe, tokens: CountedTokens) -> None:
        self.degraded: list[str] = []
        self.invalid: list[str] = []
        """Reasons that the step has shown; both are empty before it."""

        self.steps = 0
        self._run, self._probe, self._tokens = run, probe, tokens
        self._forward = ForwardPass(run)
        self._handles: list[Any] = []
        self._dropout: dict[str, int] = {}

    def start(self) -> bool:
        """Watch the model again; a step is needed."""
        self._dropout = read_dropout(self._run.unwrapped_model)
        self._handles = self._forward.watch()
        self._tokens.watch()
        return True

    def end_step(self, batches: Sequence[Batch], loss: Any) -> bool:
        """Compare the step with the first one; there is no second."""
        self.remove()
        self.steps += 1
        changed = self._probe.forward.changes(self._forward, self._dropout)
        self.degraded, self.invalid = changed
        counts = self._tokens.reasons(batches)
        self.invalid += [f"a step after the window {reason}" for reason in counts]
        return False

    def remove(self) -> None:
        """Take all hooks away."""
        self._tokens.remove()
        for handle in self._handles:
            handle.remove()
        self._handles = []


class Verification:
    """What core reads of a run to check it, from before the first step; `record` gets all of it."""

    def __init__(self, run: Run, record: RankRecord, job: Job) -> None:
        self._run, self._record = run, record
        self._probe = FirstStepProbe(run)
        self._counted = CountedTokens(run)
        self._witness = WindowWitness(run, self._probe)
        self.later = LaterStep(run, self._probe, self._counted)
        self._update = UpdateSketch(run, job.update_path(), job.update_bytes)

    def between_laps(self, lap: Callable[..., None]) -> Callable[..., None]:
        """Return the lap of warm-up steps with what is read before it."""
        return self._counted.at_first_lap(self._witness.between_laps(lap))

    def before_window(self, strategy: str | None, synchronizations: int | None) -> None:
        """Check what the warm-up showed, before the first window opens. Raises InvalidRunError."""
        batch = self._counted.first_batch
        check_first_step(
            self._run, self._probe, self._record, strategy, synchronizations, batch=batch
        )

    def read_steps(self, steps: int) -> None:
        """Read how often weights have moved after so many steps, at both ends of each window."""
        self._witness.read(steps)

    def after_window(self, window: Window) -> list[str]:
        """Record what the window changed and the optimizer did; return reasons for `invalid`."""
        found, degraded, invalid = self._witness.check(window, self._record.effective)
        self._record.effective = found
        self._record.degraded += degraded
        return invalid

    def after_all_steps(self, nodes: Sequence[int]) -> None:
        """Record what steps after the window showed. Raises InvalidRunError.

        Called once no rank waits for this one in a step; autograd made so many `nodes` in each of
        those that nothing has watched.
        """
        self._record.checked_steps = self.later.steps
        self._record.degraded += self.later.degraded
        if invalid := [*self.later.invalid, *self._witness.computed_less(nodes)]:
            raise InvalidRunError(invalid)

    def sketch_update(self, steps: int) -> None:
        """Sketch the update after the first window: all runs have taken the same steps by then."""
        if self._record.update is None:
            self._record.update = self._update.finish(steps)

    def remove(self) -> None:
        """Take all hooks away; what the first step showed is kept even when it ended the run."""
        self.later.remove()
        self._update.close()
        self._probe.remove()
        flow = {"gradient_flow": self._probe.flow}
        self._record.effective = self._record.effective.model_copy(update=flow)


def check_first_step(  # noqa: PLR0913 - what the warm-up has shown
    run: Run,
    probe: FirstStepProbe,
    record: RankRecord,
    strategy: str | None = None,
    synchronizations: int | None = None,
    *,
    batch: Batch | None = None,
) -> None:
    """Record the effective configuration. Raises InvalidRunError for one that means nothing."""
    probe.remove()
    run.workload = record.workload = read_workload(run, batch)
    record.workload_reason = run.workload_reason
    record.device = used_device(run)
    record.effective = read_effective(run, probe, record.environment, synchronizations)
    degraded, invalid = differences(run, record.effective, strategy)
    record.degraded += degraded
    if invalid:
        raise InvalidRunError(invalid)
    probe.check()

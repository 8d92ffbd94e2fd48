"""Verify a run that trains with torch: its first step, and all of it up to the end of the window.

Everything here happens in the warm-up, or after a window has closed: nothing within one.
"""

from __future__ import annotations

from collections.abc import Callable

from accel_bench.engine import Batch
from accel_bench.errors import InvalidRunError
from accel_bench.job import Job
from accel_bench.result import Window
from accel_bench.run_context import Run
from accel_bench.worker.flops.trace import read_workload
from accel_bench.worker.record import RankRecord
from accel_bench.worker.verify.counted_tokens import CountedTokens
from accel_bench.worker.verify.effective import differences, read_effective, used_device
from accel_bench.worker.verify.gradient_flow import FirstStepProbe
from accel_bench.worker.verify.update import UpdateSketch
from accel_bench.worker.verify.witness import WindowWitness


class Verification:
    """What core reads of a run to check it, from before the first step; `record` gets all of it."""

    def __init__(self, run: Run, record: RankRecord, job: Job) -> None:
        self._run, self._record = run, record
        self._probe = FirstStepProbe(run)
        self._counted = CountedTokens(run)
        self._witness = WindowWitness(run, self._probe)
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

    def sketch_update(self, steps: int) -> None:
        """Sketch the update after the first window: all runs have taken the same steps by then."""
        if self._record.update is None:
            self._record.update = self._update.finish(steps)

    def remove(self) -> None:
        """Take all hooks away; what the first step showed is kept even when it ended the run."""
        self._counted.remove()
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

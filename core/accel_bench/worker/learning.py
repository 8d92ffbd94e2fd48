"""The learning curve of one rank: evaluations before training and after the measured window, and
steps after it. Nothing here is part of what is measured."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

from accel_bench.engine import Batch
from accel_bench.job import HEARTBEAT_STEP
from accel_bench.machine.process_memory import device_bytes, resident_bytes
from accel_bench.result import Evaluation, LearningCurve, MemoryReading, Sample
from accel_bench.run_context import Run
from accel_bench.worker.after_window import Stage
from accel_bench.worker.clocks import HostClock
from accel_bench.worker.evaluation import Evaluator
from accel_bench.worker.heartbeat import Heartbeat
from accel_bench.worker.record import RankRecord
from accel_bench.worker.samples import Lap, counted, samples_of


class LearningSteps(Stage):
    """Trains on after the window, and evaluates between the steps."""

    phase = "learning"

    def __init__(
        self,
        run: Run,
        record: RankRecord,
        heartbeat: Heartbeat,
        clock: HostClock,
        evaluator: Evaluator | None,
    ) -> None:
        self._run, self._record = run, record
        self._page = heartbeat.page
        self._clock = clock
        self._evaluator = evaluator
        self._options = run.scenario.evaluate
        self._evaluations: list[Evaluation] = []
        self._steps: list[Sample] = []
        self._memory: list[MemoryReading] = []
        self._laps: list[Lap] = []
        self._first = 0

    def before_training(self) -> None:
        """Evaluate the model as it is before its first step.

        What the evaluation's peak took is given back: the window's reserve is that of training.
        """
        self._run.trace.mark("build_engine")
        self._evaluate(0)
        gc.collect()
        if not self._run.device_type.on_host:
            self._run.device_type.empty_cache()

    def start(self) -> bool:
        """Evaluate after the window, while the device is idle; return whether steps follow."""
        self._run.trace.mark("finish_metrics")
        self._first = self._page[HEARTBEAT_STEP]
        self._evaluate(self._first)
        if self._options.steps:
            self._resume()
            return True
        return self._finish()

    def end_step(self, batches: Sequence[Batch], loss: Any) -> bool:
        """End a step; evaluate where it is time to; return whether another step follows."""
        self._clock.mark()
        self._laps.append((counted(batches), loss))
        done = len(self._steps) + len(self._laps)
        self._read_memory(self._first + done)
        last = done == self._options.steps
        if not last and (self._options.every is None or done % self._options.every):
            return True
        self._clock.synchronize()
        self._keep_steps()
        if last:
            self._run.trace.mark("learning")
        self._evaluate(self._first + done)
        if last:
            return self._finish()
        self._resume()
        return True

    def _resume(self) -> None:
        self._clock.reserve(1 + (self._options.every or self._options.steps))
        self._clock.mark()

    def _finish(self) -> bool:
        if self._evaluator is not None:
            self._evaluator.predict()
            self._run.trace.mark("predict")
        return False

    def _keep_steps(self) -> None:
        """Turn the laps since the last evaluation into samples."""
        laps, self._laps = self._laps, []
        self._steps += samples_of(self._first + len(self._steps), self._clock.read(), laps)
        self._keep()

    def _evaluate(self, step: int) -> None:
        """Evaluate after so many steps. Memory is read at few of them: stages have names."""
        if self._evaluator is None:
            return
        self._evaluations.append(self._evaluator.evaluate(step))
        if step in (0, self._first, self._first + self._options.steps):
            self._run.trace.mark("evaluate")
        self._keep()

    def _read_memory(self, step: int) -> None:
        allocated = device_bytes().get("device_allocated_bytes")
        reading = MemoryReading(
            step=step, host_bytes=resident_bytes(), device_allocated_bytes=allocated
        )
        self._memory.append(reading)

    def _keep(self) -> None:
        """Write what there is into the record, however the run ends."""
        self._record.learning = LearningCurve(
            evaluations=tuple(self._evaluations),
            steps=tuple(self._steps),
            memory=tuple(self._memory),
        )

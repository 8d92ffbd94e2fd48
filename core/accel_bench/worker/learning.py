"""Learning curve of one rank: evaluations, and training steps after the measured window."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from accel_bench.engine import Batch, TokenCounts
from accel_bench.errors import InvalidRunError
from accel_bench.job import HEARTBEAT_STEP
from accel_bench.machine.clock import monotonic
from accel_bench.machine.process_memory import device_bytes, resident_bytes
from accel_bench.result import Evaluation, LearningCurve, MemoryReading, Sample
from accel_bench.run_context import Run
from accel_bench.task import Task
from accel_bench.worker.after_window import StepStage
from accel_bench.worker.clocks import HostClock, Lap, counted, samples_of
from accel_bench.worker.heartbeat import Heartbeat
from accel_bench.worker.record import RankRecord


class Evaluator:
    """Evaluator of one rank's model on held-out samples, without effect on the training."""

    def __init__(self, run: Run, batches: Iterable[Batch], synchronize: Callable[[], None]) -> None:
        self._run = run
        self._batches = batches
        self._synchronize = synchronize
        self._warm = False

    def evaluate(self, step: int) -> Evaluation:
        """Evaluate the model on this rank's held-out samples; `step` is the number of steps so far.

        Before the first evaluation one batch is computed untimed. Work before the first batch, such
        as reading all samples, is never timed.
        """
        with self._evaluating():
            rest = iter(self._batches)
            first = list(islice(rest, 1))
            if not self._warm:
                self._warm = True
                for batch in first:
                    self._loss(batch)
            self._synchronize()
            started = monotonic()
            done = [(item.sequences, item.tokens, self._loss(item)) for item in chain(first, rest)]
            self._synchronize()
            seconds = monotonic() - started
        return _evaluation(step, seconds, done)

    def predict(self) -> None:
        """Compute one batch without labels, and its logits in full, as a prediction does.

        The decoder of an encoder-decoder gets the labels as its inputs: they have the right shape.
        """
        config = getattr(self._run.unwrapped_model, "config", None)
        left_out = (self._run.task or Task).loss_inputs
        with self._evaluating():
            for batch in islice(self._batches, 1):
                inputs = {name: item for name, item in batch.inputs.items() if name not in left_out}
                if getattr(config, "is_encoder_decoder", False) and "labels" in batch.inputs:
                    inputs["decoder_input_ids"] = batch.inputs["labels"].clamp(min=0)
                self._run.model(**self._on_device(inputs))
            self._synchronize()

    def _evaluating(self) -> contextlib.AbstractContextManager[None]:
        from accel_bench.modeling.evaluating import evaluating

        return evaluating(self._run)

    def _loss(self, batch: Batch) -> Any:
        inputs, run = self._on_device(batch.inputs), self._run
        return run.loss(run.model, inputs, batch.supervised_in_step).detach()

    def _on_device(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        device = str(self._run.device)
        return {name: tensor.to(device, non_blocking=True) for name, tensor in inputs.items()}


def make_evaluator(run: Run, synchronize: Callable[[], None]) -> Evaluator | None:
    """Return an evaluator, or None if none is configured. Raises InvalidRunError without torch."""
    if not run.scenario.evaluates:
        return None
    if not hasattr(run.model, "named_parameters"):
        raise InvalidRunError(["data.held_out: nothing to evaluate, this model is none of torch"])
    return Evaluator(run, run.evaluation_batches, synchronize)


def _evaluation(
    step: int, seconds: float, done: Sequence[tuple[int, TokenCounts, Any]]
) -> Evaluation:
    # A rank without a sample left computes another one's, so that all ranks call the model.
    loss = math.fsum(float(part) for sequences, _, part in done if sequences)
    return Evaluation(
        step=step,
        loss=loss if math.isfinite(loss) else None,
        seconds=seconds,
        batches=len(done),
        sequences=sum(sequences for sequences, _, _ in done),
        real_tokens=sum(tokens.real for _, tokens, _ in done),
        supervised_tokens=sum(tokens.supervised for _, tokens, _ in done),
    )


class LearningSteps(StepStage):
    """Extra training steps after the measured window, with evaluations between them."""

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
        """Evaluate the model before its first training step, and free cached device memory.

        Otherwise the evaluation's memory would count as reserved memory of the training.
        """
        self._run.trace.mark("build_engine")
        self._evaluate(0)
        gc.collect()
        if not self._run.device_type.on_host:
            self._run.device_type.empty_cache()

    def start(self) -> bool:
        """Evaluate the model after the measured window; return whether to take extra steps."""
        self._run.trace.mark("finish_metrics")
        self._first = self._page[HEARTBEAT_STEP]
        self._evaluate(self._first)
        if self._options.steps:
            self._resume()
            return True
        return self._finish()

    def end_step(self, batches: Sequence[Batch], loss: Any) -> bool:
        """End a step, and evaluate the model if it is due; return whether to take another step."""
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
        laps, self._laps = self._laps, []
        self._steps += samples_of(self._first + len(self._steps), self._clock.read(), laps)
        self._keep()

    def _evaluate(self, step: int) -> None:
        """Evaluate after `step` steps; read memory in the first two evaluations and in the last."""
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
        """Store the learning curve so far in the record, from which a result is always written."""
        self._record.learning = LearningCurve(
            evaluations=tuple(self._evaluations),
            steps=tuple(self._steps),
            memory=tuple(self._memory),
        )

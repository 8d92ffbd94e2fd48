"""Evaluate a rank's model on held-out data: before training, and between steps of it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from accel_bench.engine import Batch, TokenCounts
from accel_bench.errors import InvalidRunError
from accel_bench.machine.clock import monotonic
from accel_bench.result import Evaluation
from accel_bench.run_context import Run
from accel_bench.task import Task


class Evaluator:
    """Evaluates the model of one rank as it is; training goes on as if nothing had been."""

    def __init__(self, run: Run, batches: Iterable[Batch], synchronize: Callable[[], None]) -> None:
        self._run = run
        self._batches = batches
        self._synchronize = synchronize
        self._warm = False

    def evaluate(self, step: int) -> Evaluation:
        """Return the mean loss of held-out samples after so many steps.

        Before the first evaluation one batch is computed that is not timed. Nor is what comes
        before the first batch, such as reading all samples.
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
            done = [(one.sequences, one.tokens, self._loss(one)) for one in chain(first, rest)]
            self._synchronize()
            seconds = monotonic() - started
        return _evaluation(step, seconds, done)

    def predict(self) -> None:
        """Compute one batch without labels, as a prediction does: its logits are all there.

        A decoder beside an encoder gets the labels as its inputs: they have the right shape.
        """
        config = getattr(self._run.unwrapped_model, "config", None)
        left_out = (self._run.task or Task).loss_inputs
        with self._evaluating():
            for batch in islice(self._batches, 1):
                inputs = {name: one for name, one in batch.inputs.items() if name not in left_out}
                if getattr(config, "is_encoder_decoder", False) and "labels" in batch.inputs:
                    inputs["decoder_input_ids"] = batch.inputs["labels"].clamp(min=0)
                self._run.model(**self._on_device(inputs))
            self._synchronize()

    def _evaluating(self) -> contextlib.AbstractContextManager[None]:
        from accel_bench.modeling.evaluating import evaluating

        return evaluating(self._run)

    def _loss(self, batch: Batch) -> Any:
        """Return the loss of a batch by the task's function, a tensor of shape ()."""
        inputs, run = self._on_device(batch.inputs), self._run
        return run.loss(run.model, inputs, batch.supervised_in_step).detach()

    def _on_device(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        device = str(self._run.device)
        return {name: one.to(device, non_blocking=True) for name, one in inputs.items()}


def make_evaluator(run: Run, synchronize: Callable[[], None]) -> Evaluator | None:
    """Return what evaluates, where the scenario holds samples out. Raises InvalidRunError."""
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

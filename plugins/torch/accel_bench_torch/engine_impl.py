"""The plain training loop, without logging, metrics or synchronization."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice

import torch

from accel_bench import Batch, Run, Stopwatch
from accel_bench.modeling.contract import check_model, check_precision
from accel_bench.modeling.sharding import clip_gradients, without_gradient_sync


class TorchEngine:
    """Engine that takes optimizer steps on `run.model`.

    The loss of a micro-batch is the sum of its elements' losses, divided by the number of
    supervised elements of the whole step on all ranks. The losses of micro-batches and of ranks
    thus add up to the step's mean loss. A plugin that averages gradients over ranks would divide
    once more, so the loss is multiplied by the number of ranks. Ranks that compute one batch
    together count as one.
    """

    def __init__(self, run: Run) -> None:
        train = run.scenario.train
        self._model = run.model
        self._loss = run.loss
        self._optimizer = run.optimizer
        self._batches: Iterator[Batch] = run.batches
        self._accumulation = train.gradient_accumulation
        self._device = str(run.device)
        self._max_grad_norm = train.max_grad_norm
        self._parameters = [p for p in run.model.parameters() if p.requires_grad]
        self._gradient_scale = float(run.data_parallel)
        self._autocast = run.autocast()
        check_precision(run)
        check_model(run)
        scaled = train.precision == "fp16-autocast"
        self._scaler = torch.amp.GradScaler(run.device.type, enabled=scaled)
        self._no_sync = without_gradient_sync(run.model)

    def run(self, stopwatch: Stopwatch) -> None:
        """Take optimizer steps while the stopwatch runs, and end each step by `stopwatch.lap`."""
        while stopwatch.running:
            batches = list(islice(self._batches, self._accumulation))
            loss = self._forward_backward(batches, stopwatch)
            self._step()
            stopwatch.mark("optimizer")
            stopwatch.lap(batches, loss)

    def _forward_backward(self, batches: list[Batch], stopwatch: Stopwatch) -> torch.Tensor:
        """Accumulate a step's gradients; return this rank's share of the step's loss, a scalar."""
        device = self._device
        total = torch.zeros((), device=device)
        for number, batch in enumerate(batches, start=1):
            with contextlib.nullcontext() if number == len(batches) else self._no_sync():
                # From pinned memory this does not wait.
                inputs = {k: v.to(device, non_blocking=True) for k, v in batch.inputs.items()}
                stopwatch.mark("data")
                with self._autocast:
                    loss = self._loss(self._model, inputs, batch.supervised_in_step)
                stopwatch.mark("forward")
                self._scaler.scale(loss * self._gradient_scale).backward()
                stopwatch.mark("backward")
            total += loss.detach()
        return total

    def _step(self) -> None:
        if self._max_grad_norm is not None:
            self._scaler.unscale_(self._optimizer)
            clip_gradients(self._parameters, self._max_grad_norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)

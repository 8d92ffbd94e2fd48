"""Training with DeepSpeed's engine: its forward, backward and step, on the scenario's batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import deepspeed
import torch
from deepspeed.utils import safe_get_full_grad

from accel_bench import Batch, Run, Stopwatch
from accel_bench.modeling.contract import check_model
from accel_bench.modeling.kept_elsewhere import kept_elsewhere, show_gradients
from accel_bench.modeling.process_group import backends_for
from accel_bench_deepspeed.config import stage_of
from accel_bench_deepspeed.impl.parameters import check_scalars, declare_parameters, scalars_sent
from accel_bench_deepspeed.impl.process import set_ranks


class DeepSpeedTraining:
    """Engine that trains `run.model` by DeepSpeed with the given configuration.

    The loss of a micro-batch is its sum over supervised tokens divided by the supervised tokens of
    the whole step, over micro-batches and ranks, as in the default engine. It is multiplied by the
    number of ranks, since DeepSpeed averages gradients. DeepSpeed's division by the number of
    micro-batches is disabled.
    """

    def __init__(self, run: Run, config: dict[str, Any]) -> None:
        check_model(run)
        check_scalars(run.model, stage_of(config), run.world_size)
        _join_alone(run)
        train = run.scenario.train
        self._batches: Iterator[Batch] = run.batches
        self._loss = run.loss
        self._accumulation = train.gradient_accumulation
        self._max_grad_norm = train.max_grad_norm
        self._device = str(run.device)
        self._gradient_scale = float(run.world_size)
        set_ranks(run)
        with torch.random.fork_rng(_devices(run)), scalars_sent(run.model):
            self._engine = deepspeed.initialize(
                model=run.model, optimizer=run.optimizer, config=config
            )[0]
        run.on_close(self._engine.destroy)
        run.model = self._engine
        self._trained = [p for p in run.unwrapped_model.parameters() if p.requires_grad]
        declare_parameters(run.unwrapped_model, self._engine)
        self._shown = False

    def run(self, stopwatch: Stopwatch) -> None:
        """Take optimizer steps while the stopwatch runs, and end each step by `stopwatch.lap`."""
        while stopwatch.running:
            batches = list(islice(self._batches, self._accumulation))
            total = torch.zeros((), device=self._device)
            for number, batch in enumerate(batches, start=1):
                total += self._forward_backward(batch, stopwatch)
                if number < len(batches):
                    self._engine.step()  # Counts a micro-batch.
            if not self._shown:
                self._show_gradients()
            self._engine.step()
            stopwatch.mark("optimizer")
            stopwatch.lap(batches, total)

    def _forward_backward(self, batch: Batch, stopwatch: Stopwatch) -> torch.Tensor:
        inputs = {k: v.to(self._device, non_blocking=True) for k, v in batch.inputs.items()}
        stopwatch.mark("data")
        loss = self._loss(self._engine, inputs, batch.supervised_in_step)
        stopwatch.mark("forward")
        self._engine.backward(loss * self._gradient_scale, scale_wrt_gas=False)
        stopwatch.mark("backward")
        return loss.detach()

    def _show_gradients(self) -> None:
        """Report the first step's gradients to core before DeepSpeed frees them in the update."""
        self._shown = True
        kept = [weight for weight in self._trained if kept_elsewhere(weight) is not None]
        readers = {weight: lambda weight=weight: safe_get_full_grad(weight) for weight in kept}
        show_gradients(readers, self._max_grad_norm)

    def evidence(self) -> dict[str, Any]:
        """Return JSON evidence of DeepSpeed's engine: stage, offload, batch sizes and steps."""
        engine = self._engine
        stage = int(engine.zero_optimization_stage())
        return {
            "summary": f"DeepSpeed {deepspeed.__version__}, ZeRO-{stage}, "
            f"{type(engine.optimizer).__name__}",
            "stage": stage,
            "optimizer": type(engine.optimizer).__name__,
            "steps": engine.global_steps,
            "skipped_steps": engine.skipped_steps,
            "offload_optimizer": _device(engine.zero_offload_optimizer()),
            "offload_parameters": _device(engine.zero_offload_param()),
            "train_batch_size": engine.train_batch_size(),
            "micro_batch_size": engine.train_micro_batch_size_per_gpu(),
            "gradient_accumulation": engine.gradient_accumulation_steps(),
            "gradient_clipping": engine.gradient_clipping(),
        }


def _join_alone(run: Run) -> None:
    """Make a process group of this rank alone if there is no group: DeepSpeed needs a group."""
    if not torch.distributed.is_initialized():
        kind = backends_for(run.device_type, run.scenario.resources.backend)
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group(kind, store=store, rank=0, world_size=1)


def _devices(run: Run) -> list[int]:
    return [run.device.index] if run.device.type == "cuda" else []


def _device(offload: Any) -> str | None:
    return None if offload is None else str(getattr(offload.device, "value", offload.device))

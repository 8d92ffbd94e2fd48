"""Trainer, configured to do the default engine's work: same batches, optimizer and loss.

Parts of a step that synchronize are off: the filter of non-finite losses, logging, token counts,
the norm of unclipped gradients, and blocking copies. All else that Trainer does is kept. Under
`fp16-autocast` the gradient scaler synchronizes in each step, as in the default engine. After the
last step Trainer reads its sum of losses once.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from accel_bench import Batch, Run, Stopwatch
from accel_bench.modeling.contract import check_model, check_precision
from accel_bench.modeling.process_group import backend_of
from accel_bench.modeling.random_state import keep_random_state
from accel_bench_hf_trainer.engine import HFTrainerOptions

LAUNCHER_VARIABLES = ("ACCELERATE_", "FSDP_", "LOCAL_", "MPI_", "MV2_", "OMPI_", "PMI_")
"""Prefixes of environment variables that would configure accelerate or its launcher."""


class HFTrainerEngine:
    """Engine that trains `run.model` with Trainer. Raises ScenarioError for fp16 on a CPU."""

    def __init__(self, run: Run, options: HFTrainerOptions) -> None:
        check_model(run)
        # Trainer seeds: with that, dropout would not be that of other engines.
        with keep_random_state(str(run.device)), _processes_as_they_are(run):
            self._trainer = LappedTrainer(run, training_arguments(run, options))

    def run(self, stopwatch: Stopwatch) -> None:
        """Run Trainer's optimizer steps until the stopwatch stops; `Laps` times each step."""
        if stopwatch.running:
            self._trainer.stopwatch = stopwatch
            self._trainer.train()

    def evidence(self) -> dict[str, Any]:
        """Return JSON evidence: Trainer's steps so far, its processes, wrapper and precision."""
        trainer = self._trainer
        return {
            "steps": trainer.state.global_step,
            "processes": trainer.args.world_size,
            "wrapped_model": type(trainer.model_wrapped).__name__,
            "mixed_precision": trainer.accelerator.mixed_precision,
            "distributed_type": str(trainer.accelerator.distributed_type.value),
            "schedule": type(trainer.lr_scheduler).__name__,
        }


class LappedTrainer(Trainer):
    """Trainer that consumes the run's micro-batches, and times each step with a stopwatch.

    The loss of a micro-batch is its sum over supervised elements divided by the supervised elements
    of the whole step, over micro-batches and ranks, as in the default engine. It is multiplied by
    the number of ranks, since DDP averages gradients.
    """

    loss_is_scaled_for_ga = True

    def __init__(self, run: Run, arguments: TrainingArguments) -> None:
        self.stopwatch: Stopwatch
        self.step_batches: list[Batch] = []
        self.step_loss = torch.zeros(())
        self._batches: Iterator[Batch] = run.batches
        self._loss = run.loss
        self._gradient_scale = float(run.world_size)
        constant = torch.optim.lr_scheduler.LambdaLR(run.optimizer, lambda _: 1.0)
        super().__init__(
            model=run.model,
            args=arguments,
            callbacks=[Laps(run, self)],
            optimizers=(run.optimizer, constant),
        )
        # Before `loss_is_scaled_for_ga` was there, this meant that the loss needs no more scaling.
        self.model_accepts_loss_kwargs = True
        self.remove_callback(PrinterCallback)

    def get_train_dataloader(self) -> Any:
        """Return the run's batches as they are; accelerate would shard, collate and copy them."""
        return self._batches

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, Any]], int]:
        """Return the inputs of a step's micro-batches, and its number of supervised tokens."""
        self.step_batches = list(islice(epoch_iterator, num_batches))
        self.step_loss = torch.zeros((), device=device)
        inputs = [dict(batch.inputs) for batch in self.step_batches]
        return inputs, self.step_batches[0].supervised_in_step

    def training_step(
        self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Run forward and backward of a micro-batch, and return its loss, scaled for DDP.

        Inputs are copied to the device without blocking.
        """
        on_device = {k: v.to(self.args.device, non_blocking=True) for k, v in inputs.items()}
        self.stopwatch.mark("data")
        loss: torch.Tensor = super().training_step(model, on_device, num_items_in_batch)
        self.stopwatch.mark("backward")
        return loss

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return a micro-batch's loss times the number of ranks.

        `num_items_in_batch` is the number of supervised tokens of the step. With `return_outputs`
        the result is a pair of the loss and None, since outputs are used only in evaluation, which
        is off.
        """
        loss = self._loss(model, inputs, num_items_in_batch)
        self.step_loss += loss.detach()
        self.stopwatch.mark("forward")
        scaled = loss * self._gradient_scale
        return (scaled, None) if return_outputs else scaled

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Return `grad_norm`, the norm that clipping computed, or None without clipping.

        Trainer's own method would compute a norm for the log.
        """
        return grad_norm


class Laps(TrainerCallback):
    """Callback that ends each timed step, and ends the training when the stopwatch stops."""

    def __init__(self, run: Run, trainer: LappedTrainer) -> None:
        self._run = run
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report the model that Trainer has wrapped to core."""
        self._run.model = self._trainer.model_wrapped

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """End the timed step, after parameters are updated and gradients cleared."""
        trainer = self._trainer
        trainer.stopwatch.mark("optimizer")
        trainer.stopwatch.lap(trainer.step_batches, trainer.step_loss)
        control.should_training_stop = not trainer.stopwatch.running
        return control


def training_arguments(run: Run, options: HFTrainerOptions) -> TrainingArguments:
    """Return Trainer's arguments for a scenario; features that the scenario lacks are off.

    Gradient checkpointing is omitted, since the model already has it. Raises ScenarioError for fp16
    on a CPU, where Trainer would silently compute in float32.
    """
    check_precision(run)
    train = run.scenario.train
    arguments = TrainingArguments(
        output_dir=str(run.folder),
        max_steps=sys.maxsize,
        per_device_train_batch_size=train.micro_batch_size,
        gradient_accumulation_steps=train.gradient_accumulation,
        max_grad_norm=train.max_grad_norm or 0.0,
        seed=train.seed,
        use_cpu=run.device.type == "cpu",
        bf16=train.precision == "bf16-autocast",
        fp16=train.precision == "fp16-autocast",
        label_names=["labels"],
        logging_strategy="no",
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        ddp_backend=backend_of(run.device) if run.world_size > 1 else None,
        ddp_broadcast_buffers=False,
        ddp_bucket_cap_mb=options.ddp_bucket_cap_mb,
        ddp_static_graph=options.ddp_static_graph,
        ddp_find_unused_parameters=options.ddp_find_unused_parameters,
    )
    # One process that sees several devices would spread every batch over all of them.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


@contextlib.contextmanager
def _processes_as_they_are(run: Run) -> Iterator[None]:
    """Set the environment variables from which the library accelerate learns the ranks.

    These variables and the number of threads are set in the `with` block. Other launchers'
    variables are removed there, since accelerate would misread them. All are restored afterwards.
    """
    before = dict(os.environ)
    described = {"RANK": run.rank, "WORLD_SIZE": run.world_size}
    if run.world_size > 1:
        local_size = int(before.get("LOCAL_WORLD_SIZE", run.scenario.resources.devices))
        described |= {"LOCAL_RANK": run.local_rank, "LOCAL_WORLD_SIZE": local_size}
    described["OMP_NUM_THREADS"] = torch.get_num_threads()
    for name in filter(lambda name: name.startswith(LAUNCHER_VARIABLES), before):
        del os.environ[name]
    os.environ.update({name: str(number) for name, number in described.items()})
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)

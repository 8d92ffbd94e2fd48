"""Callback for Trainer, and for its subclasses such as TRL's, with an accelerated model."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from transformers import TrainerCallback

from accel_bench.errors import ScenarioError
from accel_bench.modeling.checkpointing import CHECKPOINTING_WORDS
from accel_bench_apply.accelerated import AcceleratedModel
from accel_bench_apply.request import of_trainer
from accel_bench_apply.script import apply_stack, makes_another_model

TAKEN_FROM_ARGUMENTS = {
    "train.micro_batch_size": "per_device_train_batch_size",
    "train.global_batch_size": "batch size times accumulation times processes",
    "train.gradient_accumulation": "gradient_accumulation_steps",
    "train.max_grad_norm": "max_grad_norm",
    "train.precision": "bf16, fp16",
    "train.learning_rate": "learning_rate",
    "data.sequence_length": "max_length",
}
"""Names of Trainer's arguments, by the scenario key that they set."""

PATIENCE = 50
"""Number of steps, but for those with learning rate 0, of which a gradient scaler may skip all."""


class AccelerateCallback(TrainerCallback):
    """Callback that checks a Trainer's arguments against a stack, and the effective configuration
    after the first step.

    It takes an accelerated model, or the arguments `stack` and options of `accelerate`. With a
    stack, the callback accelerates the Trainer's model in place, with the Trainer's arguments. It
    closes the model at the end of the training. Call `accelerate` before the Trainer is made if the
    stack adds an adapter, wraps the model or builds batches.
    """

    def __init__(self, stack: Any, **options: Any) -> None:
        self.accelerated: AcceleratedModel | None = None
        """The accelerated model, or None before the Trainer is made."""

        self._stack = stack
        self._options = options
        self._own = not isinstance(stack, AcceleratedModel)
        self._skipped = 0
        if isinstance(stack, AcceleratedModel):
            self.accelerated = stack

    def on_init_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Accelerate the Trainer's model in place, if the callback has a stack. Raises
        ScenarioError if the stack replaces the model by another object."""
        if not self._own:
            return
        model = objects["model"]
        made = apply_stack(model, self._stack, arguments=args, in_place=True, **self._options)
        self.accelerated = made
        if made.model is not model:
            made.close()
            raise makes_another_model(made.stack)

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Raise ScenarioError if a Trainer does not apply a part of the stack."""
        if wrong := [*_left_out(self._accelerated(), args, objects)]:
            self._end()
            raise ScenarioError("; ".join(wrong))

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Check the effective configuration after the first step of an optimizer."""
        made = self._accelerated()
        if not made.stepped:
            self._skipped += not made.idle  # A gradient scaler skips steps until its scale fits.
            if self._skipped < PATIENCE:
                return
        try:
            made.check()
        except BaseException:
            self._end()
            raise

    def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Close the accelerated model if the callback has made it."""
        self._end()

    def _accelerated(self) -> AcceleratedModel:
        if self.accelerated is None:
            raise ScenarioError(
                "the callback of the stack has seen no Trainer being made; give it in `callbacks`, "
                "not by `add_callback`, or give it an accelerated model"
            )
        return self.accelerated

    def _end(self) -> None:
        if self._own:
            self._accelerated().close()


def _left_out(made: AcceleratedModel, args: Any, objects: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for each part of the stack that a Trainer omits or applies twice.

    `args` are its TrainingArguments, and `objects` the keyword arguments of the callback.
    """
    yield from _otherwise(made, args)
    names = {part.name.partition(".")[0] for part in made.outside}
    if "loss" in names:
        yield (
            "the stack computes its loss itself, and Trainer would take the model's: train in a "
            "loop of your own, with accelerated.loss"
        )
    if "optimizer" in names and not _is_built(made, objects.get("optimizer")):
        yield (
            "the stack has an optimizer of its own: give optimizers=(accelerated.optimizer(), None)"
        )
    loader = objects.get("train_dataloader")
    collate = getattr(loader, "collate_fn", None)
    if "batches" in names and getattr(collate, "__self__", None) is not made:
        inner = getattr(collate, "data_collator", None)  # What Trainer wraps to drop columns.
        if getattr(inner, "__self__", None) is not made:
            yield "the stack has batches of its own: give data_collator=accelerated.collate"
    yield from _twice(made, args)


def _otherwise(made: AcceleratedModel, args: Any) -> Iterator[str]:
    """Yield a sentence for each setting of the stack that TrainingArguments `args` set to another
    value. Warn of the stack's settings for which Trainer has no argument."""
    said = dict(of_trainer(args))
    samples = said["train.micro_batch_size"] * said["train.gradient_accumulation"]
    said["train.global_batch_size"] = samples * args.world_size
    if length := getattr(args, "max_length", None):
        said["data.sequence_length"] = length
    for part in made.outside:
        argument = TAKEN_FROM_ARGUMENTS.get(part.name) if part.name in said else None
        if argument and said[part.name] != part.value:
            yield (
                f"{part.name} is {part.value} by {part.by}, and Trainer's {argument} makes it "
                f"{said[part.name]}"
            )
        elif argument is None and part.by == "the stack" and not part.name.startswith("optimizer."):
            warnings.warn(f"Trainer's arguments do not show {part}", stacklevel=2)


def _is_built(made: AcceleratedModel, optimizer: Any) -> bool:
    """Return whether a Trainer's optimizer, wrapped by Accelerate, was built by the stack."""
    inner = getattr(optimizer, "optimizer", optimizer)
    return made.built_optimizer is not None and inner is made.built_optimizer


def _twice(made: AcceleratedModel, args: Any) -> Iterator[str]:
    """Yield a sentence if both the stack and the TrainingArguments `args` compile the model, and
    one if both recompute activations."""
    for acts, names in (
        (made.answered("compile_model"), ("torch_compile",)),
        (made.recomputes, tuple(f"{word}_checkpointing" for word in CHECKPOINTING_WORDS)),
    ):
        said = next((name for name in names if getattr(args, name, False)), "")
        if acts and said:
            yield f"the stack does it, and Trainer's {said} would do it again; set it to False"

"""What a model must offer to the engines in the box, and the check that names what it does not.

A model that a plugin returns from `load_model` is a `torch.nn.Module` with

- `forward(input_ids, labels, ..., num_items_in_batch)`: tensors of shape (samples, length) under
  the names of `Batch.inputs`. Where the task takes the model's own loss, it returns an object whose
  `loss`, of shape (), is the sum of the losses of supervised tokens (label != -100 after the shift)
  divided by `num_items_in_batch`: an optimizer step of several micro-batches, or ranks, adds their
  losses up.
- optionally `config`: core reads `vocab_size` (data beyond it is refused) and what it counts FLOPs
  from, or from what its `get_text_config()` returns where it has one.
- optionally `gradient_checkpointing_enable(gradient_checkpointing_kwargs)` and
  `gradient_checkpointing_disable()`: without them `train.gradient_checkpointing` is refused.

`load_model` calls `accel_bench.check_fit(config, run)` where it does not use `load_base_model`, and
`prepare_process` imports what is heavy: what comes later counts as the model's memory.
"""

from __future__ import annotations

import inspect
from typing import Any

from accel_bench import Run
from accel_bench.engine import own_loss
from accel_bench.errors import PluginError, ScenarioError

PROBED_TOKENS = 8
"""Length of the sequence with which a model's loss is tried."""

CLOSE = 0.05
"""How near two losses must be to 2:1, in 16 bits too."""


def text_config(config: Any) -> Any:
    """Return the part of a configuration that describes the text model; itself without parts."""
    return getattr(config, "get_text_config", lambda: config)()


def has_attention(config: Any) -> bool:
    """Return whether a configuration has heads of attention: a convolutional network has none."""
    return any(hasattr(one, "num_attention_heads") for one in (config, text_config(config)))


def check_model(run: Run) -> None:
    """Refuse a model that an engine in the box would train wrongly, by what it does not offer.

    Raises PluginError.
    """
    if run.loss is not own_loss:
        return  # The task divides.
    adapted = run.unwrapped_model
    model = getattr(adapted, "get_base_model", lambda: adapted)()
    if _written_in(model).startswith("transformers."):
        return  # Its losses are divided as they should be.
    if problem := _problem(model, run):
        raise PluginError(
            f"the model {type(model).__name__} of plugin {run.scenario.model.use!r} {problem}; "
            "accel_bench.modeling.contract says what a model must offer"
        )


def check_precision(run: Run) -> None:
    """Raise ScenarioError for fp16 on a CPU, where a scaled step takes many times a float32 one."""
    dtype = run.scenario.train.autocast_dtype
    if dtype == "float16" and dtype not in run.device_type.autocast_dtypes:
        raise ScenarioError("train.precision: fp16-autocast needs a CUDA device; use bf16-autocast")


def _written_in(model: Any) -> str:
    """Return the module of the class that defines a model's forward."""
    owners = (kind.__module__ for kind in type(model).__mro__ if "forward" in vars(kind))
    return next(owners, "")


def _problem(model: Any, run: Run) -> str:
    """Return what a model lacks; empty for nothing."""
    forward = getattr(model, "forward", None)
    if forward is None or not hasattr(model, "named_parameters"):
        return "is no torch.nn.Module"
    parameters = inspect.signature(forward).parameters.values()
    names = {one.name for one in parameters}
    if "num_items_in_batch" not in names and not any(
        one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters
    ):
        return "takes no num_items_in_batch, by which the loss of a step is divided"
    if run.scenario.train.gradient_accumulation * run.world_size > 1:
        return _wrong_division(model, run)
    return ""


def _wrong_division(model: Any, run: Run) -> str:
    """Compare the losses of one sequence, divided by two numbers of tokens, without compiling.

    The model is in evaluation meanwhile, so that running statistics stay as they are.
    """
    from accel_bench.modeling.evaluating import evaluating

    with evaluating(run):
        try:
            once, twice = (_loss(model, run, PROBED_TOKENS * times) for times in (1, 2))
        except Exception:  # It takes other inputs than these: only its own data can try it.
            return ""
    if abs(once - 2 * twice) <= CLOSE * abs(once):
        return ""
    return (
        f"ignores num_items_in_batch (a loss of {once:.4g} for {PROBED_TOKENS} tokens, "
        f"{twice:.4g} for {2 * PROBED_TOKENS}): accumulated losses and gradients would be too "
        "large; divide the sum of the losses by it"
    )


def _loss(model: Any, run: Run, count: int) -> float:
    """Return the loss of a sequence of zeros, always with the same random numbers."""
    import torch

    ids = torch.zeros((1, PROBED_TOKENS), dtype=torch.long, device=str(run.device))
    torch.manual_seed(0)
    found: float = model(input_ids=ids, labels=ids, num_items_in_batch=count).loss.item()
    return found

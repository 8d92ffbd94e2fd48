"""Interface of models for the shipped engines, and a check that names a model's missing parts.

A model that a plugin returns from `load_model` is a `torch.nn.Module` with

- `forward(input_ids, labels, ..., num_items_in_batch)`, called with tensors of shape (samples,
  length) under the names of `Batch.inputs`. If the task uses the model's own loss, it returns an
  object whose `loss`, of shape (), is the sum of the losses of supervised tokens (label != -100
  after the shift) divided by `num_items_in_batch`. The losses of a step's micro-batches and ranks
  are added up.
- optionally `config`, from which (or from its `get_text_config()`) the core reads sizes for FLOPs
  and `vocab_size`; data with more tokens is refused.
- optionally `gradient_checkpointing_enable(gradient_checkpointing_kwargs)` and
  `gradient_checkpointing_disable()`, without which `train.gradient_checkpointing` is refused.

A `load_model` that does not use `load_base_model` must call `accel_bench.check_fit(config, run)`.
Heavy imports belong into `prepare_process`: later imports count as the model's memory.
"""

from __future__ import annotations

import inspect
from typing import Any

from accel_bench import Run
from accel_bench.engine import own_loss
from accel_bench.errors import PluginError, ScenarioError

PROBED_TOKENS = 8
"""Length in tokens of the sequence on which a model's loss is tested."""

CLOSE = 0.05
"""Relative tolerance within which two losses are 2:1, also in 16-bit dtypes."""


def text_config(config: Any) -> Any:
    """Return the text model's part of a configuration, or the whole one if it has no such part."""
    return getattr(config, "get_text_config", lambda: config)()


def has_attention(config: Any) -> bool:
    """Return whether a model configuration states attention heads; convolutional ones do not."""
    return any(hasattr(part, "num_attention_heads") for part in (config, text_config(config)))


def check_model(run: Run) -> None:
    """Raise PluginError that names the model's defect if shipped engines would train it wrongly."""
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
    """Raise ScenarioError for fp16 on a CPU, which would be many times slower than float32."""
    dtype = run.scenario.train.autocast_dtype
    if dtype == "float16" and dtype not in run.device_type.autocast_dtypes:
        raise ScenarioError("train.precision: fp16-autocast needs a CUDA device; use bf16-autocast")


def _written_in(model: Any) -> str:
    owners = (kind.__module__ for kind in type(model).__mro__ if "forward" in vars(kind))
    return next(owners, "")


def _problem(model: Any, run: Run) -> str:
    """Return a model's defect as a predicate, such as `is no torch.nn.Module`, or an empty text."""
    forward = getattr(model, "forward", None)
    if forward is None or not hasattr(model, "named_parameters"):
        return "is no torch.nn.Module"
    parameters = inspect.signature(forward).parameters.values()
    names = {parameter.name for parameter in parameters}
    if "num_items_in_batch" not in names and not any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters
    ):
        return "takes no num_items_in_batch, by which the loss of a step is divided"
    if run.scenario.train.gradient_accumulation * run.world_size > 1:
        return _wrong_division(model, run)
    return ""


def _wrong_division(model: Any, run: Run) -> str:
    """Return a predicate that says that the loss ignores `num_items_in_batch`; else empty text.

    The model, uncompiled and in evaluation mode, is called with a number of items and its double.
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
    """Return a model's loss on zero tokens, called with `num_items_in_batch=count`."""
    import torch

    ids = torch.zeros((1, PROBED_TOKENS), dtype=torch.long, device=str(run.device))
    torch.manual_seed(0)
    loss: float = model(input_ids=ids, labels=ids, num_items_in_batch=count).loss.item()
    return loss

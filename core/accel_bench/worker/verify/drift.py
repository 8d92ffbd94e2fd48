"""Comparison of the state of training after the measured window with that after the first step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from accel_bench.analysis.wording import count, join_names
from accel_bench.modeling.tensors import dtype_name, elements_by_dtype
from accel_bench.run_context import Run
from accel_bench.worker.verify.kernels import enabled_attention_backends, read_linear_kernels
from accel_bench.worker.verify.recomputation import read_checkpointing


class TrainingState(NamedTuple):
    """State of model, optimizer and torch at the end of a step, as values under readable names."""

    training: Mapping[str, Any]
    """Values that decide the training's results: a change makes the run invalid."""

    speed: Mapping[str, Any]
    """Values that decide the training's speed: a change makes the run degraded."""

    evaluating: frozenset[str]
    """Names of the modules that are not in training mode."""

    trained: frozenset[str]
    """Names of the parameters that require a gradient."""

    replaced: frozenset[str]
    """Names of the modules whose forward was replaced."""


def read_state(run: Run) -> TrainingState:
    """Return the present state of model, optimizer and torch, without computing anything."""
    model = run.unwrapped_model
    parameters = list(model.named_parameters())
    modules = dict(model.named_modules())
    config = getattr(model, "config", None)
    blocks = read_checkpointing(model)
    training = {
        "model.training": bool(run.model.training and model.training),
        "dropout": read_dropout(model),
        "weights": elements_by_dtype(parameter for _, parameter in parameters),
        "linear layers": read_linear_kernels(model),
    }
    speed = {
        "blocks under gradient checkpointing": f"{blocks.checkpointed} of {blocks.blocks}",
        "attention": getattr(config, "_attn_implementation", None),
        "attention backends": tuple(enabled_attention_backends()),
        "key-value cache": bool(getattr(config, "use_cache", False)),
        "autocast": _autocast(run),
        "threads": torch.get_num_threads(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "optimizer": type(run.optimizer).__name__,
    }
    return TrainingState(
        training,
        speed,
        evaluating=frozenset(name for name, module in modules.items() if not module.training),
        trained=frozenset(name for name, tensor in parameters if tensor.requires_grad),
        replaced=frozenset(name for name, module in modules.items() if "forward" in vars(module)),
    )


def read_dropout(model: torch.nn.Module) -> dict[str, int]:
    """Return by dropout probability, except 0, the number of modules that have it.

    A probability is `p` of torch's dropout modules, or an attribute with `drop` in its name.
    """
    counts: Counter[str] = Counter()
    for module in model.modules():
        dropout = isinstance(module, torch.nn.modules.dropout._DropoutNd)
        values = vars(module).items()
        own = [v for name, v in values if (dropout and name == "p") or "drop" in name]
        counts.update(f"{value:g}" for value in own if isinstance(value, float) and value > 0)
    return dict(counts.most_common())


def changes(
    before: TrainingState, after: TrainingState, first: Iterable[str]
) -> tuple[list[str], list[str]]:
    """Return two lists of texts on the changes between two states: why the run is `degraded`, and
    why it is `invalid`. `first` has the names of the tensors that trained in the first step."""
    invalid = [*_different(before.training, after.training)]
    if before.training["model.training"] == after.training["model.training"]:
        if modules := after.evaluating - before.evaluating:
            invalid.append(f"{_names(modules, 'module')} left training mode after the first step")
        if modules := before.evaluating - after.evaluating:
            invalid.append(
                f"{_names(modules, 'module')} entered training mode after the first step"
            )
    invalid += _trained(frozenset(first), after.trained)
    degraded = [*_different(before.speed, after.speed)]
    if modules := after.replaced - before.replaced:
        degraded.append(f"the forward of {_names(modules, 'module')} was replaced while it trained")
    return degraded, invalid


def _trained(first: frozenset[str], now: frozenset[str]) -> Iterator[str]:
    if gone := first - now:
        tensors = _names(gone, f"of {len(first)} tensor")
        yield f"{tensors} that trained in the first step no longer do after the window"
    if added := now - first:
        yield f"{_names(added, 'tensor')} train after the window and did not in the first step"


def _different(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for what, value in before.items():
        if value != after[what]:
            yield f"{what} was {_text(value)} before the window and {_text(after[what])} after it"


def _text(value: Any) -> str:
    """Return a state's value as text; a mapping with counts such as `0.1 (24), 0.2 (2)`."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} ({number})" for name, number in value.items()) or "0"
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return str(value)


def _names(names: Iterable[str], noun: str) -> str:
    """Return the number of names and the first ones as text, such as `2 modules (a, b)`."""
    known = sorted(name or "the model" for name in names)
    return f"{count(len(known), noun)} ({join_names(known)})"


def _autocast(run: Run) -> str | None:
    kind = run.device.type
    enabled = torch.is_autocast_enabled(kind)
    return dtype_name(torch.get_autocast_dtype(kind)) if enabled else None

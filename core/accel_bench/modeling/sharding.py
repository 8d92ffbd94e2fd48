"""Training with sharded tensors: one norm over all of them, and steps without synchronization."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from accel_bench.modeling.kept_elsewhere import kept_elsewhere


def clip_gradients(parameters: Iterable[torch.nn.Parameter], most: float) -> torch.Tensor:
    """Scale gradients down to a total L2 norm of `most`; return the norm before, of shape ().

    The norm of a sharded tensor is over all its shards. Torch's function cannot mix tensors of
    different sharding: each kind is added up by itself.
    """
    kinds: dict[Any, list[torch.nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            kinds.setdefault(getattr(parameter.grad, "device_mesh", None), []).append(parameter)
    if kinds.keys() <= {None}:
        return torch.nn.utils.clip_grad_norm_(kinds.get(None, []), most)
    parts = (torch.nn.utils.get_total_norm([p.grad for p in kind]) for kind in kinds.values())
    total = torch.stack([whole(norm) for norm in parts]).norm()
    for kind in kinds.values():
        torch.nn.utils.clip_grads_with_norm_(kind, most, total)
    return total


def is_sharded(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a DTensor, without the slow import of its module."""
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor gathered from all ranks that hold a part of it; a plain tensor unchanged."""
    kept = kept_elsewhere(tensor)
    if kept is not None:
        return kept.read().detach()
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def on_this_rank(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a sharded tensor, detached, or a plain tensor, detached.

    A parameter stored elsewhere by a library is read whole.
    """
    if kept_elsewhere(tensor) is not None:
        return whole(tensor)
    tensor = tensor.detach()
    return tensor.to_local() if is_sharded(tensor) else tensor


def gradient_on_this_rank(parameter: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient of this rank's part of a parameter, or None without a gradient.

    All ranks that share the parameter must call this together, since a backward pass may leave the
    gradient sharded in another way than the parameter.
    """
    gradient: Any = parameter.grad
    if gradient is None:
        return None
    if gradient.is_sparse:
        return gradient.to_dense()
    if is_sharded(gradient):
        gradient = gradient.redistribute(placements=parameter.placements)
    return on_this_rank(gradient)


def reshard(model: torch.nn.Module) -> None:
    """Free the weights that FSDP2 gathered, after a forward pass that no backward pass follows.

    Otherwise only a backward pass would free the weights of the outermost module.
    """
    for module in model.modules():
        if hasattr(module, "set_reshard_after_forward"):
            module.reshard()


def without_gradient_sync(
    model: Any,
) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Return a function that makes contexts in which each rank accumulates its own gradients.

    Engines enter one for each micro-batch of a step except the last. The contexts do nothing if the
    model cannot delay the synchronization of gradients.
    """
    if hasattr(model, "no_sync"):
        no_sync: Callable[[], contextlib.AbstractContextManager[Any]] = model.no_sync
        return no_sync
    if hasattr(model, "set_requires_gradient_sync"):
        return lambda: _accumulating(model)
    return contextlib.nullcontext


@contextlib.contextmanager
def _accumulating(model: Any) -> Iterator[None]:
    """Let FSDP2 keep unsharded gradients on each rank within the block."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)

"""The bytes that an operation reads and writes, by its schema: the same for all its spellings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_iter

from accel_bench.worker.estimate.tracker import content_bytes

OVERWRITING = frozenset(
    {
        *("fill_", "zero_", "copy_", "_foreach_zero_", "_foreach_copy_", "normal_", "uniform_"),
        *("random_", "bernoulli_", "exponential_", "log_normal_", "cauchy_", "geometric_"),
    }
)
"""Operations that write their first argument without reading it."""

GATHERING = frozenset({"embedding", "index", "_unsafe_index", "gather", "index_select", "take"})
"""Operations that read of their first argument as much as they return."""


def moved_bytes(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    """Return the bytes that an operation reads and writes.

    What it writes are the arguments that its schema names so, and results that are no arguments.
    """
    name, given = func.overloadpacket.__name__, list(_arguments(func, args, kwargs))
    inputs = {id(tensor) for _, value in given for tensor in _tensors(value)}
    made = _size([tensor for tensor in _tensors(out) if id(tensor) not in inputs])
    moved = made
    for number, (argument, value) in enumerate(given):
        size = _size(_tensors(value))
        if number == 0 and name in GATHERING:
            size = min(size, made)
        elif name.endswith("_like") or name.startswith("new_"):
            size = 0  # only the shape and the dtype are taken over
        only_written = argument.is_out or (number == 0 and name in OVERWRITING)
        moved += size * (2 if _writes(name, argument, kwargs) and not only_written else 1)
    return moved


def _arguments(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the arguments of the schema with their values; those with a default may be missing."""
    for number, argument in enumerate(func._schema.arguments):
        if number < len(args):
            yield argument, args[number]
        elif argument.name in kwargs:
            yield argument, kwargs[argument.name]


def _writes(name: str, argument: Any, kwargs: Any) -> bool:
    if argument.alias_info is None or not argument.alias_info.is_write:
        return False
    # Optimizers in one kernel write gradients only where these were scaled.
    unscaled = kwargs.get("grad_scale") is None
    return not (name.startswith("_fused_") and argument.name == "grads" and unscaled)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [one for one in tree_iter(value) if isinstance(one, torch.Tensor)]


def _size(tensors: list[torch.Tensor]) -> int:
    return sum(map(content_bytes, tensors))

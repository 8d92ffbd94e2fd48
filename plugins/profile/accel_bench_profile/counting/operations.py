"""Kinds of torch's operations, and the bytes that they read and write.

Bytes follow from an operation's schema, so that all its variants are counted alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch.utils._pytree import tree_iter

from accel_bench.modeling.tensors import dtype_name
from accel_bench.worker.communication import is_collective
from accel_bench.worker.flops.operations import content_bytes, moves_nothing
from accel_bench_profile.figures.kernel_kinds import shared_kind
from accel_bench_profile.ledger.schema import Kind

SYNCHRONIZING = frozenset(
    {
        *("_local_scalar_dense", "item", "nonzero", "nonzero_numpy", "is_nonzero", "equal"),
        *("masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive"),
        *("argwhere", "bincount"),
    }
)
"""Operations whose result, or its size, the host waits for."""

MASKS = (torch.bool, torch.uint8)
"""Dtypes of an index that is a mask."""

NAMES: tuple[tuple[Kind, tuple[str, ...]], ...] = (
    ("indexing", ("embedding", "index", "gather", "scatter", "masked_fill", "where", "slice_b")),
    ("copy", ("clone", "copy_", "_to_copy", "cat", "stack", "repeat", "flip", "roll")),
    ("creation", ("zeros", "ones", "full", "fill", "zero_", "arange", "scalar_tensor", "tril")),
    ("creation", ("triu", "eye", "empty", "new_")),
    ("reduction", ("sum", "mean", "amax", "amin", "norm", "any", "all", "var", "max")),
)
"""Name patterns of kinds that profiles call memory-bound; the first match counts."""


def kind_of(func: Any, used: Sequence[torch.Tensor], made: list[torch.Tensor], flops: int) -> Kind:
    """Return the kind of an operation that does not synchronize.

    `used` and `made` are the tensors that it takes and returns; `flops` are the FLOPs of its matrix
    products.
    """
    name = func.overloadpacket.__name__
    if is_collective(func):
        return "communication"
    if moves_nothing(func, list(used), made):
        return "creation" if "empty" in name else "view" if made else "other"
    if cast_of(name, used, made):
        return "cast"
    shared: Kind | None = shared_kind(name)
    if flops and shared != "attention":
        return "matmul"
    named = (kind for kind, parts in NAMES if any(part in name for part in parts))
    return shared or next(named, None) or _tagged(func)


def synchronizes(func: Any, args: Any, kwargs: Any, out: Any) -> bool:
    """Return whether the host waits for an operation on an asynchronous device."""
    name = func.overloadpacket.__name__
    if name in SYNCHRONIZING:
        return True
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    if "index" in name and len(args) > 1 and isinstance(args[1], Sequence):
        return _counts_a_mask(args)
    if name != "_to_copy" or out.device.type != "cpu":
        return False
    return args[0].device.type not in ("cpu", "meta")


def _counts_a_mask(args: Any) -> bool:
    """Return whether an operation has a boolean mask as an index, and must count the mask's ones.

    The result is False for the writing of one host value by a single index, which needs no count.
    """
    indices = [index for index in args[1] if isinstance(index, torch.Tensor)]
    filled = len(args) > 2 and args[2].numel() == 1 and args[2].device.type == "cpu"
    if filled and len(indices) == 1:
        return False
    return any(index.dtype in MASKS for index in indices)


def cast_of(name: str, used: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> str:
    """Return `float32 to bfloat16` for an operation that changes the dtype in this way; else empty.

    `used` and `made` are the tensors that the operation takes and returns.
    """
    source = None
    if name == "_to_copy" and used and made:
        source, target = used[0], made[0]
    elif name == "copy_" and len(used) > 1:
        target, source = used[0], used[1]
    if source is None or source.dtype == target.dtype:
        return ""
    return f"{dtype_name(source.dtype)} to {dtype_name(target.dtype)}"


def _tagged(func: Any) -> Kind:
    if torch.Tag.nondeterministic_seeded in func.tags:
        return "random"
    return "elementwise" if torch.Tag.pointwise in func.tags else "other"


OVERWRITING = frozenset(
    {
        *("fill_", "zero_", "copy_", "_foreach_zero_", "_foreach_copy_", "normal_", "uniform_"),
        *("random_", "bernoulli_", "exponential_", "log_normal_", "cauchy_", "geometric_"),
    }
)
"""Operations that overwrite their first argument without reading it."""

GATHERING = frozenset({"embedding", "index", "_unsafe_index", "gather", "index_select", "take"})
"""Operations that read as much of their first argument as they return."""

Given = Mapping[str, Any]
"""Arguments of an operation by name in its schema."""

SCATTERING: Mapping[str, Callable[[Given], int]] = {
    **dict.fromkeys(
        ("scatter_", "scatter_add_", "scatter_reduce_", "put_"),
        lambda given: int(given["index"].numel()),
    ),
    **dict.fromkeys(
        ("index_add_", "index_copy_", "index_reduce_"),
        lambda given: int(given["source"].numel()),
    ),
    "index_fill_": lambda given: _slices(given["self"], given["dim"], given["index"].numel()),
    **dict.fromkeys(
        ("index_put_", "_index_put_impl_"),
        lambda given: chosen_elements(given["self"], given["indices"]),
    ),
}
"""Number of written elements, by operation that writes a part of its first argument."""

ONLY_PLACING = frozenset({"index_copy_", "index_fill_"})
"""Scattering operations that never read the elements they overwrite."""


def moved_bytes(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    """Return the bytes that an operation reads and writes.

    It writes the arguments that its schema marks as written, and results that are no arguments.
    """
    name, given = func.overloadpacket.__name__, list(_arguments(func, args, kwargs))
    if name in SCATTERING:
        return _scattered(name, {argument.name: value for argument, value in given})
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


def _scattered(name: str, given: Given) -> int:
    """Return the bytes moved by an operation that writes a part of its first argument."""
    target = given["self"]
    size = SCATTERING[name](given) * target.element_size()
    reads = name not in ONLY_PLACING and _adds_up(name, given)
    others = {key: _size(_tensors(value)) for key, value in given.items() if key != "self"}
    if "src" in others:
        others["src"] = min(others["src"], size)  # it may be larger than the index
    return size * (2 if reads else 1) + sum(others.values())


def _adds_up(name: str, given: Given) -> bool:
    """Return whether an operation accumulates into the written elements."""
    if name in ("put_", "index_put_", "_index_put_impl_"):
        return bool(given.get("accumulate", False))
    return name != "scatter_" or "reduce" in given


def _slices(tensor: torch.Tensor, dim: int, number: int) -> int:
    """Return the number of elements in `number` slices of a tensor along the dimension `dim`."""
    return number * (tensor.numel() // tensor.shape[dim] if tensor.numel() and tensor.dim() else 1)


def chosen_elements(tensor: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> int:
    """Return the number of elements of `tensor[indices]`; for a mask, its number of ones."""
    shapes, dim, kept = [], 0, 1
    for index in indices:
        if index is None:
            kept *= tensor.shape[dim]
            dim += 1
        elif index.dtype in MASKS:
            shapes.append(torch.Size([int(index.count_nonzero())]))
            dim += index.dim()
        else:
            shapes.append(index.shape)
            dim += 1
    return prod(torch.broadcast_shapes(*shapes)) * kept * prod(tensor.shape[dim:])


def _arguments(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each argument in an operation's schema with its given value, without defaults."""
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
    return [leaf for leaf in tree_iter(value) if isinstance(leaf, torch.Tensor)]


def _size(tensors: list[torch.Tensor]) -> int:
    return sum(map(content_bytes, tensors))

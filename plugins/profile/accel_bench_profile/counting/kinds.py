"""Which kind of operation one of torch's is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from accel_bench.modeling.tensors import dtype_name
from accel_bench.worker.communication import is_collective
from accel_bench.worker.flops.operations import moves_nothing
from accel_bench_profile.figures.kinds import shared_kind
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
"""Dtypes of an index that chooses by a mask."""

NAMES: tuple[tuple[Kind, tuple[str, ...]], ...] = (
    ("indexing", ("embedding", "index", "gather", "scatter", "masked_fill", "where", "slice_b")),
    ("copy", ("clone", "copy_", "_to_copy", "cat", "stack", "repeat", "flip", "roll")),
    ("creation", ("zeros", "ones", "full", "fill", "zero_", "arange", "scalar_tensor", "tril")),
    ("creation", ("triu", "eye", "empty", "new_")),
    ("reduction", ("sum", "mean", "amax", "amin", "norm", "any", "all", "var", "max")),
)
"""Parts of names by kind, of operations that profiles call memory-bound; the first is taken."""


def kind_of(func: Any, used: Sequence[torch.Tensor], made: list[torch.Tensor], flops: int) -> Kind:
    """Return the kind of an operation that does not synchronize; `flops` are of its products."""
    name = func.overloadpacket.__name__
    if is_collective(func):
        return "communication"
    if moves_nothing(func, list(used), made):
        return "creation" if "empty" in name else "view" if made else "other"
    if cast_of(name, used, made):
        return "cast"
    found: Kind | None = shared_kind(name)
    if flops and found != "attention":
        return "matmul"
    named = (kind for kind, parts in NAMES if any(part in name for part in parts))
    return found or next(named, None) or _tagged(func)


def synchronizes(func: Any, args: Any, kwargs: Any, out: Any) -> bool:
    """Return whether the host waits for an operation on a device that works on its own."""
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
    """Return whether a mask is among the indices: how many are chosen is read first.

    A number is filled in without that.
    """
    indices = [one for one in args[1] if isinstance(one, torch.Tensor)]
    filled = len(args) > 2 and args[2].numel() == 1 and args[2].device.type == "cpu"
    if filled and len(indices) == 1:
        return False
    return any(one.dtype in MASKS for one in indices)


def cast_of(name: str, used: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> str:
    """Return `float32 to bfloat16` of an operation that changes the dtype; else nothing."""
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

"""FLOPs of one torch operation, and bytes of its tensors."""

from __future__ import annotations

from math import prod
from typing import Any, cast

import torch
from torch.utils import flop_counter

aten = torch.ops.aten


def moves_nothing(func: Any, used: list[torch.Tensor], made: list[torch.Tensor]) -> bool:
    """Return whether an operation moves no data, like a view, from tensors `used` to `made`."""
    if "empty" in func.overloadpacket.__name__ or not (made or func._schema.is_mutable):
        return True
    before = {id(tensor.untyped_storage()) for tensor in used}
    shared = any(id(tensor.untyped_storage()) in before for tensor in made)
    return shared and not func._schema.is_mutable


def content_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements, or of its storage if that is smaller."""
    return cast(int, min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()))


def flops_of(packet: Any, args: Any, kwargs: Any, out: Any) -> int:
    """Return the FLOPs of a call of the operation `packet`; 0 unless matmul or attention."""
    if packet is aten._grouped_mm:
        return 2 * args[0].shape[-2] * args[0].shape[-1] * args[1].shape[-1]
    if packet is aten._scaled_dot_product_flash_attention_for_cpu:
        return _attention_flops(args[0], args[2], 2)
    if packet is aten._scaled_dot_product_flash_attention_for_cpu_backward:
        return _attention_flops(args[1], args[3], 5)
    count = flop_counter.flop_registry.get(packet)
    return int(count(*args, **kwargs, out_val=out)) if count else 0


def _attention_flops(query: torch.Tensor, value: torch.Tensor, products: int) -> int:
    """Return the FLOPs of causal attention, half of those of `products` full matrix products."""
    return products * prod(query.shape) * value.shape[-2]

"""Other values in the tensors of a batch, at the same addresses; outputs that are written over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only


@contextlib.contextmanager
def holding(batch: Any, other: Any) -> Iterator[Any]:
    """Let the tensors of a batch hold the values of another one, at the same addresses.

    Yield the other batch itself where its tensors are not alike.
    """
    (ours, our_tree), (theirs, their_tree) = tree_flatten(batch), tree_flatten(other)
    if our_tree != their_tree or not all(map(_alike, ours, theirs)):
        yield other
        return
    tensors = [one for one in ours if torch.is_tensor(one)]
    saved = [one.detach().clone() for one in tensors]
    write(tensors, [one for one in theirs if torch.is_tensor(one)])
    try:
        yield batch
    finally:
        write(tensors, saved)


def _alike(one: Any, other: Any) -> bool:
    """Return whether a value may hold another one: tensors of a shape, or the same plain value."""
    if not (torch.is_tensor(one) and torch.is_tensor(other)):
        return one is other or (isinstance(one, bool | int | float | str) and one == other)
    kinds = [(each.shape, each.dtype, each.device, each.layout) for each in (one, other)]
    return kinds[0] == kinds[1] and _is_plain(one)


def plain_tensors(batch: Any) -> list[Any]:
    """Return the tensors of a batch, without what made them."""
    return [one.detach() for one in tree_leaves(batch) if hasattr(one, "detach")]


def scaled(batch: Any, scale: float) -> Any:
    """Return a batch whose floating-point tensors are multiplied."""

    def times(tensor: Any) -> Any:
        found = tensor.detach() * scale if tensor.is_floating_point() else tensor
        return found.requires_grad_(tensor.requires_grad)

    return tree_map_only(torch.Tensor, times, batch)


def write_over(out: Any, kept: Any) -> None:
    """Fill the tensors of an output that share no memory with those to be kept.

    No version of a tensor tells of it: what has kept the tensor does not see that it was written.
    """
    addresses = {_address(one) for one in tree_leaves(kept) if _is_plain(one)}
    with torch.inference_mode():
        for one in tree_leaves(out):
            if _is_plain(one) and _address(one) not in addresses:
                one.fill_(torch.nan if one.is_floating_point() or one.is_complex() else 1)


def _is_plain(value: Any) -> bool:
    """Return whether a value is a tensor each of whose elements has an address of its own."""
    if not torch.is_tensor(value) or value.layout is not torch.strided or value.is_nested:
        return False
    return all(size < 2 or step for size, step in zip(value.shape, value.stride(), strict=True))


def _address(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def write(tensors: Sequence[Any], values: Sequence[Any]) -> None:
    """Write values into tensors, outside of autograd."""
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)

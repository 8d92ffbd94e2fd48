"""Tensors in memory that the judge's process and the step's process share."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

ALIGNMENT = 64


class TensorLayout(NamedTuple):
    """Name, dtype and shape of a tensor, and its offset in bytes in the shared memory."""

    name: str
    dtype: str
    shape: Sequence[int]
    offset: int

    @property
    def elements(self) -> int:
        """Number of elements of the tensor."""
        return math.prod(self.shape)


def lay_out(named: Iterable[tuple[str, torch.Tensor]], start: int) -> tuple[list[Any], int]:
    """Return the layouts of named tensors, one after the other from the offset `start` in bytes,
    and the offset after the last."""
    layouts = []
    for name, tensor in named:
        dtype = str(tensor.dtype).removeprefix("torch.")
        layouts.append(TensorLayout(name, dtype, tuple(tensor.shape), start))
        size = tensor.numel() * tensor.element_size()
        start += -(-size // ALIGNMENT) * ALIGNMENT
    return layouts, start


def attach(memory: mmap.mmap, layouts: Iterable[Sequence[Any]]) -> dict[str, torch.Tensor]:
    """Return tensors by name that use `memory` as their storage. Each item of `layouts` has the
    fields of a `TensorLayout`."""
    tensors = {}
    for layout in (TensorLayout(*fields) for fields in layouts):
        dtype = getattr(torch, layout.dtype)
        if layout.elements:
            flat = torch.frombuffer(
                memory, dtype=dtype, count=layout.elements, offset=layout.offset
            )
            tensors[layout.name] = flat.reshape(tuple(layout.shape))
        else:
            tensors[layout.name] = torch.empty(tuple(layout.shape), dtype=dtype)
    return tensors


def state_of(model: Any) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of a model by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def copy_to(state: Mapping[str, torch.Tensor], records: Mapping[str, torch.Tensor]) -> None:
    """Copy the tensors of `state` into the tensors of `records` with the same name. Raises
    ValueError if `state` lacks one."""
    try:
        tensors = [state[name] for name in records]
    except KeyError as error:
        raise ValueError(f"the model has no parameter or buffer {error}") from None
    with torch.no_grad():
        torch._foreach_copy_([*records.values()], tensors)


def loss_value(loss: Any) -> float:
    """Return a loss, which is a tensor of one element or a number, as a float. Raises TypeError for
    anything else."""
    try:
        return float(loss.detach() if isinstance(loss, torch.Tensor) else loss)
    except (RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"`step` did not return a loss of one number: {error}") from error

"""Properties of tensors: dtypes by name, and the plain tensors that a subclass wraps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._guards import detect_fake_mode

from accel_bench.modeling.kept_elsewhere import dtype_of, elements_of


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name without its module, such as `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def elements_by_dtype(tensors: Iterable[torch.Tensor]) -> dict[str, int]:
    """Return the number of elements of tensors by dtype, largest number first."""
    counts: Counter[str] = Counter()
    for tensor in tensors:
        counts[dtype_name(dtype_of(tensor))] += elements_of(tensor)
    return dict(counts.most_common())


def device_index(place: torch.device) -> int:
    """Return the index of a device, or of its type's current device if it has no index."""
    if place.index is not None:
        return place.index
    return torch.empty(0, device=place).device.index or 0


def has_values(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's elements can be read: it is not meta, lazy or sparse."""
    lazy = torch.nn.parameter.is_lazy(tensor)
    return not lazy and not tensor.is_meta and tensor.layout == torch.strided


def plain_tensors(tensor: Any) -> Iterator[torch.Tensor]:
    """Yield the plain tensors that a tensor wraps, or the tensor if it wraps no tensor.

    Of a sharded tensor only this rank's part is yielded.
    """
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    parts = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
    for part in parts:
        if isinstance(part, torch.Tensor):
            yield from plain_tensors(part)


def is_simulated() -> bool:
    """Return whether new tensors are torch's fake tensors, with shapes and without values."""
    return detect_fake_mode() is not None

"""Seeded tensors and modules, on a device and in a dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from accel_bench.machine.devices import of_torch_type
from accel_bench.modeling.tensors import device_index

FIRST_SEED = 2025
"""Offset of seeds, so that inputs and cotangents differ: an input equal to its cotangent would have
no gradient through a norm."""

OF_BATCHES = 1_000_003
"""Distance between the seeds of two batches, larger than the number of their tensors."""

SPREAD = 0.02
"""Standard deviation of weights, as in initialized models."""


def batch_seed(seed: int) -> int:
    """Return the seed for tensor number `seed` of a batch, which also depends on torch's seed."""
    return (seed + OF_BATCHES * torch.initial_seed()) % 2**62


def made(make: Callable[..., Any], *args: Any, device: str, dtype: str, seed: int) -> Any:
    """Return `make(*args)`, called with this seed and with this default device and dtype of torch.

    The global random state and torch's defaults are restored after the call.
    """
    place, before = torch.device(device), torch.get_default_dtype()
    with of_torch_type(place.type).keep_random_state(device_index(place)), place:
        torch.manual_seed(FIRST_SEED + seed)
        torch.set_default_dtype(getattr(torch, dtype))
        try:
            return make(*args)
        finally:
            torch.set_default_dtype(before)


@torch.no_grad()
def filled(kind: Callable[..., nn.Module], *args: Any) -> nn.Module:
    """Return the module `kind(*args)` with random weights.

    Matrices and biases are around 0, weights of norms around 1. Neighboring values differ, which
    reveals kernels that mix them up.
    """
    module = kind(*args)
    for name, parameter in module.named_parameters():
        parameter.normal_(std=SPREAD)
        if parameter.dim() == 1 and name.endswith("weight"):
            parameter.add_(1)
    return module

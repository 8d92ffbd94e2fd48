"""Make tensors and modules from a fixed seed, on a device and in a dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from accel_bench.machine.devices import of_torch_type
from accel_bench.modeling.tensors import device_index

FIRST_SEED = 2025
"""Seed of what is made with seed 0: no cotangent, which begin at 0 too, may equal an input. Along
its own input a norm has no gradient."""

OF_BATCHES = 1_000_003
"""Distance of the seeds of two batches, in which no seed of another tensor may fall."""

SPREAD = 0.02
"""Standard deviation of weights, as models are initialized."""


def batch_seed(seed: int) -> int:
    """Return the seed of a tensor in a batch: another one after another `torch.manual_seed`."""
    return (seed + OF_BATCHES * torch.initial_seed()) % 2**62


def made(make: Callable[..., Any], *args: Any, device: str, dtype: str, seed: int) -> Any:
    """Call a function with torch's defaults set to a device and a dtype, from a seed.

    The global random state and the defaults are left as they were.
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
    """Return a module of a kind: matrices as models are initialized, vectors around one and zero.

    No number is the same as its neighbours, so that a kernel that mixes them up is found out.
    """
    module = kind(*args)
    for name, parameter in module.named_parameters():
        parameter.normal_(std=SPREAD)
        if parameter.dim() == 1 and name.endswith("weight"):
            parameter.add_(1)
    return module

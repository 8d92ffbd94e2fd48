"""Wrap a model in DistributedDataParallel, and show that the replicas stay alike."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from accel_bench import Run
from accel_bench.builtin.parallel.ddp import DDPOptions
from accel_bench.errors import ScenarioError

BUFFER_SYNC_KEYWORDS = ("forward_sync_buffers", "broadcast_buffers")
"""What torch calls the broadcast of buffers before each forward, newest name first."""


def wrap(run: Run, options: DDPOptions) -> DistributedDataParallel:
    """Return the replicated model. Raises ScenarioError without a process group.

    Buffers are not broadcast: packed weights of quantized layers are buffers, and would travel
    every step, though they never change.
    """
    if not torch.distributed.is_initialized():
        why = "set resources.devices" if run.world_size == 1 else "no plugin before it uses torch"
        raise ScenarioError(f"ddp needs more than one device in a process group: {why}")
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    keyword = next(name for name in BUFFER_SYNC_KEYWORDS if name in known)
    return DistributedDataParallel(
        run.model,
        device_ids=[run.device.index] if run.device.type == "cuda" else None,
        bucket_cap_mb=options.bucket_cap_mb,
        static_graph=options.static_graph,
        gradient_as_bucket_view=options.gradient_as_bucket_view,
        **{keyword: False},
    )


def evidence(run: Run) -> dict[str, Any]:
    """World size, and the largest difference between the ranks' sums of trained parameters."""
    trained = [p.detach().double().sum() for p in run.model.parameters() if p.requires_grad]
    mine = torch.stack(trained).sum().reshape(1)
    sums = [torch.zeros_like(mine) for _ in range(run.world_size)]
    torch.distributed.all_gather(sums, mine)
    spread = float(max(sums) - min(sums))
    return {"world_size": torch.distributed.get_world_size(), "replica_difference": spread}

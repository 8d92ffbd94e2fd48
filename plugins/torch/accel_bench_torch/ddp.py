"""The plugin `ddp`: torch's DistributedDataParallel, with one process for each device."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from accel_bench import Experiment, Machine, Options, Plugin, Run, hookimpl
from accel_bench.errors import ScenarioError

BUFFER_SYNC_KEYWORDS = ("forward_sync_buffers", "broadcast_buffers")
"""Torch's names for the broadcast of buffers before each forward, newest first."""


class DDPOptions(Options):
    """Options of `ddp`, in torch's names."""

    bucket_cap_mb: float = Field(25.0, gt=0)
    """Size of the buckets in which gradients are reduced, in MiB."""

    static_graph: bool = False
    """True to let DDP assume the same graph in every step."""

    gradient_as_bucket_view: bool = True
    """True for gradients that are views of the buckets, which saves a copy of them."""


class DDP(Plugin[DDPOptions]):
    """Replicates the model on every device and averages gradients."""

    Options = DDPOptions
    modes = frozenset({"train"})
    strategy = "DistributedDataParallel"

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterator[str]:
        """Yield a reason if a static graph is combined with gradient accumulation.

        Accumulation skips the synchronization in which torch learns a static graph.
        """
        accumulation = experiment.scenario.train.gradient_accumulation
        if self.options.static_graph and accumulation > 1:
            yield (
                "torch learns a static graph in the first backward pass, and "
                f"train.gradient_accumulation {accumulation} exchanges nothing in that one; leave "
                "one of them out"
            )

    @hookimpl
    def parallelize_model(self, run: Run) -> Any:
        """Return the model wrapped in DistributedDataParallel.

        Buffers are not broadcast: packed weights of quantized layers are buffers, and would be sent
        in every step, though they never change. Raises ScenarioError without a process group.
        """
        import torch
        from torch.nn.parallel import DistributedDataParallel

        if not torch.distributed.is_initialized():
            alone = run.world_size == 1
            why = "set resources.devices" if alone else "no plugin before it uses torch"
            raise ScenarioError(f"ddp needs more than one device in a process group: {why}")
        known = inspect.signature(DistributedDataParallel.__init__).parameters
        return DistributedDataParallel(
            run.model,
            device_ids=None if run.device_type.on_host else [run.device.index],
            **{next(name for name in BUFFER_SYNC_KEYWORDS if name in known): False},
            **self.options.model_dump(),
        )

    @hookimpl
    def report_evidence(self, run: Run) -> dict[str, Any] | None:
        """Return JSON evidence of the replicas; None if the model is not wrapped by DDP."""
        from torch.nn.parallel import DistributedDataParallel

        return _evidence(run) if isinstance(run.model, DistributedDataParallel) else None


def _evidence(run: Run) -> dict[str, Any]:
    """Return JSON evidence: world size, DDP's settings, and how far the replicas differ.

    The difference is between the largest and the smallest of the ranks' sums of trained parameters.
    """
    import torch

    trained = [p.detach().double().sum() for p in run.model.parameters() if p.requires_grad]
    mine = torch.stack(trained).sum().reshape(1)
    sums = [torch.zeros_like(mine) for _ in range(run.world_size)]
    torch.distributed.all_gather(sums, mine)
    return {
        "world_size": torch.distributed.get_world_size(),
        "replica_difference": float(max(sums) - min(sums)),
        "bucket_bytes": run.model.bucket_bytes_cap,
        "static_graph": bool(run.model.static_graph),
    }

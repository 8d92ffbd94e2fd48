"""`ddp`: torch's DistributedDataParallel, one process for each device."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from accel_bench import Options, Plugin, Run, hookimpl


class DDPOptions(Options):
    """Options of `ddp`, in torch's names."""

    bucket_cap_mb: float = Field(25.0, gt=0)
    """Size of the buckets in which gradients are reduced, in MiB."""

    static_graph: bool = False
    """Tell DDP that the graph is the same in every step."""

    gradient_as_bucket_view: bool = True
    """Let gradients be views of the buckets, which saves a copy of them."""


class DDP(Plugin[DDPOptions]):
    """Replicates the model on every device and averages gradients."""

    Options = DDPOptions
    strategy = "DistributedDataParallel"

    @hookimpl
    def parallelize_model(self, run: Run) -> Any:
        """Return the wrapped model."""
        from accel_bench.builtin.parallel.ddp_impl import wrap

        return wrap(run, self.options)

    @hookimpl
    def report_evidence(self, run: Run) -> dict[str, Any]:
        """Show how many processes there are, and that they agree on the parameters."""
        from accel_bench.builtin.parallel.ddp_impl import evidence

        return evidence(run)

"""The metrics plugin `checkpoint`: the cost of writing the training state, in full or sharded."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Literal

from accel_bench import Metric, Options, Plugin, Run, Window, hookimpl


class CheckpointOptions(Options):
    """Options of `checkpoint`: the checkpoint's format and content."""

    format: Literal["full", "sharded"] = "full"
    """Format of the checkpoint. `full`: rank 0 gathers all and writes one file. `sharded`: each
    rank writes its part."""

    optimizer: bool = True
    """Write the optimizer's state too, for resuming the training."""

    frozen_weights: bool = False
    """Write frozen weights too; without them a checkpoint of adapters has adapters only."""

    keep: bool = False
    """Keep the checkpoint in the run's folder, under `checkpoint`."""


class Checkpoint(Plugin[CheckpointOptions]):
    """Writes a checkpoint after the window, to disk: seconds, bytes, and each rank's memory.

    Time runs from a barrier of all ranks until the slowest has synced its files (`fsync`). Formats
    are those of `torch.save` and `torch.distributed.checkpoint`.
    """

    Options = CheckpointOptions
    modes = frozenset({"train"})

    @hookimpl
    def finish_metrics(self, run: Run, window: Window) -> Iterable[Metric]:
        """Write the checkpoint, and yield its seconds and bytes and this rank's host memory."""
        if "torch" in sys.modules and hasattr(run.unwrapped_model, "named_parameters"):
            from accel_bench_metrics.checkpoint_impl import write_checkpoint

            yield from write_checkpoint(run, self.options)

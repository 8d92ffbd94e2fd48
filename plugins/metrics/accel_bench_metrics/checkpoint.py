"""`checkpoint`: what it costs to write the state of training, in full or sharded."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Literal

from accel_bench import Metric, Options, Plugin, Run, Window, hookimpl


class CheckpointOptions(Options):
    """Options of `checkpoint`."""

    format: Literal["full", "sharded"] = "full"
    """`full`: rank 0 gathers and writes one file. `sharded`: each rank writes what it holds."""

    optimizer: bool = True
    """Write the optimizer's state too, as training needs it to go on."""

    frozen_weights: bool = False
    """Write weights that do not train; without them a checkpoint of adapters holds adapters."""

    keep: bool = False
    """Leave the checkpoint in the run's folder, under `checkpoint`."""


class Checkpoint(Plugin[CheckpointOptions]):
    """Writes a checkpoint after the window, to disk: seconds, bytes, and each rank's memory.

    From the moment when all ranks are there until the slowest has its files on the disk
    (`fsync`). Formats are those of `torch.save` and `torch.distributed.checkpoint`.
    """

    Options = CheckpointOptions
    modes = frozenset({"train"})

    @hookimpl
    def finish_metrics(self, run: Run, window: Window) -> Iterable[Metric]:
        """Return seconds and bytes of the checkpoint, and the host memory of this rank."""
        if "torch" in sys.modules and hasattr(run.unwrapped_model, "named_parameters"):
            from accel_bench_metrics.checkpoint_impl import write_checkpoint

            yield from write_checkpoint(run, self.options)

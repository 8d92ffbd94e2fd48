"""Leave a snapshot of CUDA's allocator when memory runs out, with the history until then."""

from __future__ import annotations

from typing import Any

import torch

from accel_bench import Run

MOST_EVENTS = 200_000
"""Allocations in the history, the newest."""


def keep_history(run: Run) -> None:
    """Keep the history from here on, and write it at an out-of-memory error."""
    path = run.folder / f"rank{run.rank}.oom_snapshot.pickle"

    def write(*_: Any) -> None:
        torch.cuda.memory._dump_snapshot(str(path))
        run.logger.warning("out of memory: %s, for https://pytorch.org/memory_viz", path)

    torch.cuda.memory._record_memory_history(max_entries=MOST_EVENTS, stacks="python")
    torch._C._cuda_attach_out_of_memory_observer(write)
    run.on_close(stop_history)


def stop_history() -> None:
    """Keep no more history; what was kept can still be written."""
    torch.cuda.memory._record_memory_history(enabled=None)

"""The part of `memory` that uses torch: bytes that a forward pass keeps, and a snapshot for OOM."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from accel_bench import Metric, Run
from accel_bench.builtin.metrics.memory import bytes_metric
from accel_bench.modeling.saved_tensors import one_forward, saved_bytes

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


def saved_for_backward(run: Run) -> Iterable[Metric]:
    """Take one forward pass of the next micro-batch and add up what it keeps on the rank's device.

    The pass comes after the measured window, and no backward pass follows it. It goes round the
    wrapper of a data-parallel model, whose gradients it would otherwise expect. A model that is no
    torch module has no such figure; one that cannot take the pass gets a null with the reason.
    """
    model = run.unwrapped_model
    if not isinstance(model, torch.nn.Module):
        return
    size, reason = None, ""
    try:
        size = one_forward(run, model, saved_bytes)
    except Exception as error:
        # Whatever a model does not take about one more pass, what was measured is measured.
        text = (str(error).splitlines() or [""])[0]
        reason = f"the forward pass for it failed: {type(error).__name__}: {text}"
    yield bytes_metric("saved_for_backward", size, "one_forward_of_a_micro_batch", reason)

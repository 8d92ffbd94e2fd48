"""Metrics plugin `memory`: peaks in the window and in the run, bytes saved by a forward pass."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from accel_bench import Metric, Options, Plugin, Run, Stage, Window, hookimpl

MOST_EVENTS = 200_000
"""Largest number of the newest allocations in the allocator's history."""


class MemoryOptions(Options):
    """Options of `memory`."""

    saved_for_backward: bool = True
    """True to take one more forward pass after the window, and add up its saved tensors."""

    oom_snapshot: bool = False
    """True to leave `rank<N>.oom_snapshot.pickle`, on CUDA, in an out-of-memory run's folder.

    The allocator keeps its history until the window begins, and not in the window.
    """


class Memory(Plugin[MemoryOptions]):
    """Measures memory per rank, from the readings that core takes between stages."""

    Options = MemoryOptions

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        """Start recording the allocator's history, if a snapshot is requested."""
        if self.options.oom_snapshot and run.device.type == "cuda":
            _keep_history(run)

    @hookimpl
    def start_metrics(self, run: Run) -> None:
        """Stop recording the allocator's history, so that the window is undisturbed."""
        if self.options.oom_snapshot and run.device.type == "cuda":
            _stop_history()

    @hookimpl
    def finish_metrics(self, run: Run, window: Window) -> Iterable[Metric]:
        """Yield the rank's memory metrics in bytes: peaks of the window and the run, saved tensors.
        Core reads the peaks of the window before any plugin uses memory for its own metrics."""
        stages = run.trace.stages
        last = run.trace.find("window")
        if last is not None:
            yield from () if run.device_type.on_host else _device_peaks(stages, last)
            yield from _resident_peaks(run, stages, last)
        if self.options.saved_for_backward and "torch" in sys.modules:
            yield from _saved_for_backward(run)


def _keep_history(run: Run) -> None:
    """Record the allocator's history; write it to a file of the rank at an out-of-memory error."""
    import torch

    path = run.folder / f"rank{run.rank}.oom_snapshot.pickle"

    def write(*_: Any) -> None:
        torch.cuda.memory._dump_snapshot(str(path))
        run.logger.warning("out of memory: %s, for https://pytorch.org/memory_viz", path)

    torch.cuda.memory._record_memory_history(max_entries=MOST_EVENTS, stacks="python")
    torch._C._cuda_attach_out_of_memory_observer(write)
    run.on_close(_stop_history)


def _stop_history() -> None:
    """Stop recording the allocator's history; the recorded part can still be written."""
    import torch

    torch.cuda.memory._record_memory_history(enabled=None)


def _saved_for_backward(run: Run) -> Iterable[Metric]:
    """Take a forward pass of the next micro-batch, and yield the bytes saved on the rank's device.

    The pass comes after the measured window, without a backward pass. It bypasses the wrapper of a
    data-parallel model, which would otherwise expect gradients. Nothing is yielded for a model that
    is no torch module. If the pass fails, the metric is null with the reason.
    """
    import torch

    from accel_bench.modeling.saved_tensors import one_forward, saved_bytes

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
    yield _bytes_metric("saved_for_backward", size, "one_forward_of_a_micro_batch", reason)


def _device_peaks(stages: list[Stage], window: Stage) -> Iterable[Metric]:
    allocated, reserved = window.device_peak_allocated_bytes, window.device_peak_reserved_bytes
    yield _bytes_metric("peak_memory", allocated, "allocated")
    yield _bytes_metric("peak_reserved", reserved, "reserved")
    of_run = _largest(stage.device_peak_allocated_bytes for stage in stages)
    yield _bytes_metric("run_peak_memory", of_run, "allocated")
    of_run = _largest(stage.device_peak_reserved_bytes for stage in stages)
    yield _bytes_metric("run_peak_reserved", of_run, "reserved")
    unused = None if allocated is None or reserved is None else reserved - allocated
    yield _bytes_metric("fragmentation", unused, "peak_reserved_minus_peak_allocated")
    split = window.device_peak_inactive_split_bytes
    yield _bytes_metric("fragmentation", split, "peak_inactive_split")


def _resident_peaks(run: Run, stages: list[Stage], window: Stage) -> Iterable[Metric]:
    """Yield metrics of peak resident bytes; on a CPU also of the growth since the imports."""
    peak, reason = window.host_peak_bytes, ""
    if peak is None:
        reason = "this system does not tell the peak of the window from that of the process"
    if run.device_type.on_host:
        imports = run.trace.find("imports")
        before = imports.host_bytes if imports else None
        above = None if peak is None or before is None else max(0, peak - before)
        yield _bytes_metric("peak_memory", above, "rss_above_imports", reason)
    yield _bytes_metric("peak_rss", peak, "rss", reason)
    # Where peaks cannot be forgotten, the process still has that of its whole life.
    peaks = (stage.host_peak_bytes for stage in stages)
    of_run = run.trace.peak_resident_bytes() if peak is None else _largest(peaks)
    yield _bytes_metric("run_peak_rss", of_run, "rss")


def _largest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _bytes_metric(figure: str, value: int | None, kind: str, reason: str = "") -> Metric:
    """Return a rank's metric `<figure>_bytes`, measured as `kind`; `reason` explains a None."""
    more: Any = {"figure": figure, "scope": "rank", "better": "lower"}
    return Metric(
        name=f"{figure}_bytes", value=value, unit="bytes", kind=kind, reason=reason, **more
    )

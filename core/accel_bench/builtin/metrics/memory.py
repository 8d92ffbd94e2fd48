"""`memory`: what the window and the whole run needed at their peaks, and what a forward keeps."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from accel_bench import Metric, Options, Plugin, Run, Stage, Window, hookimpl


class MemoryOptions(Options):
    """Options of `memory`."""

    saved_for_backward: bool = True
    """Take one more forward pass after the window, and add up what autograd keeps of it."""

    oom_snapshot: bool = False
    """On CUDA, leave `rank<N>.oom_snapshot.pickle` in the folder of a run that runs out of memory.

    The allocator keeps its history for it until the window begins, and not in the window.
    """


class Memory(Plugin[MemoryOptions]):
    """Measures memory per rank, from the readings that core takes between stages."""

    Options = MemoryOptions

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        """Begin to keep the history of the allocator, where a snapshot is requested."""
        if self.options.oom_snapshot and run.device.type == "cuda":
            from accel_bench.builtin.metrics.memory_impl import keep_history

            keep_history(run)

    @hookimpl
    def start_metrics(self, run: Run) -> None:
        """Leave the window alone."""
        if self.options.oom_snapshot and run.device.type == "cuda":
            from accel_bench.builtin.metrics.memory_impl import stop_history

            stop_history()

    @hookimpl
    def finish_metrics(self, run: Run, window: Window) -> Iterable[Metric]:
        """Return the peaks of the window and of the run, in bytes of this rank.

        Core reads the peaks of the window before any plugin uses memory for its own metrics.
        """
        stages = run.trace.stages
        last = run.trace.find("window")
        if last is not None:
            yield from () if run.device_type.on_host else _device_peaks(stages, last)
            yield from _resident_peaks(run, stages, last)
        if self.options.saved_for_backward and "torch" in sys.modules:
            from accel_bench.builtin.metrics.memory_impl import saved_for_backward

            yield from saved_for_backward(run)


def _device_peaks(stages: list[Stage], window: Stage) -> Iterable[Metric]:
    allocated, reserved = window.device_peak_allocated_bytes, window.device_peak_reserved_bytes
    yield bytes_metric("peak_memory", allocated, "allocated")
    yield bytes_metric("peak_reserved", reserved, "reserved")
    of_run = _largest(stage.device_peak_allocated_bytes for stage in stages)
    yield bytes_metric("run_peak_memory", of_run, "allocated")
    of_run = _largest(stage.device_peak_reserved_bytes for stage in stages)
    yield bytes_metric("run_peak_reserved", of_run, "reserved")
    unused = None if allocated is None or reserved is None else reserved - allocated
    yield bytes_metric("fragmentation", unused, "peak_reserved_minus_peak_allocated")
    split = window.device_peak_inactive_split_bytes
    yield bytes_metric("fragmentation", split, "peak_inactive_split")


def _resident_peaks(run: Run, stages: list[Stage], window: Stage) -> Iterable[Metric]:
    """Yield resident memory; on a CPU that above the imports is the peak that tables show."""
    peak, reason = window.host_peak_bytes, ""
    if peak is None:
        reason = "this system does not tell the peak of the window from that of the process"
    if run.device_type.on_host:
        imports = run.trace.find("imports")
        before = imports.host_bytes if imports else None
        above = None if peak is None or before is None else max(0, peak - before)
        yield bytes_metric("peak_memory", above, "rss_above_imports", reason)
    yield bytes_metric("peak_rss", peak, "rss", reason)
    # Where peaks cannot be forgotten, the process still has that of its whole life.
    peaks = (stage.host_peak_bytes for stage in stages)
    of_run = run.trace.peak_resident_bytes() if peak is None else _largest(peaks)
    yield bytes_metric("run_peak_rss", of_run, "rss")


def _largest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def bytes_metric(figure: str, value: int | None, kind: str, reason: str = "") -> Metric:
    """Return a figure of this rank in bytes, or a null with the reason."""
    more: Any = {"figure": figure, "scope": "rank", "better": "lower"}
    return Metric(
        name=f"{figure}_bytes", value=value, unit="bytes", kind=kind, reason=reason, **more
    )

"""`memory`: what the window and the whole run needed at their peaks, and what a forward keeps."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from accel_bench import Metric, Options, Plugin, Run, Stage, Window, hookimpl

UNKNOWN_PEAK = "this system does not tell the peak of the window from that of the process"
"""Why resident memory has no peak of the window."""


class MemoryOptions(Options):
    """Options of `memory`."""

    saved_for_backward: bool = True
    """Take one more forward pass after the window, and add up what autograd keeps of it."""


class Memory(Plugin[MemoryOptions]):
    """Measures memory per rank, from the readings that core takes between stages."""

    Options = MemoryOptions

    @hookimpl
    def finish_metrics(self, run: Run, window: Window) -> Iterable[Metric]:
        """Return the peaks of the window and of the run, in bytes of this rank.

        Core reads the peaks of the window before any plugin uses memory for its own metrics.
        """
        stages = run.trace.stages
        last = run.trace.find("window")
        if last is not None:
            yield from _device_peaks(stages, last) if run.device.type == "cuda" else ()
            yield from _resident_peaks(run, stages, last)
        if self.options.saved_for_backward and "torch" in sys.modules:
            from accel_bench.builtin.metrics.saved_for_backward_impl import saved_for_backward

            yield from saved_for_backward(run)


def _device_peaks(stages: list[Stage], window: Stage) -> Iterable[Metric]:
    """What tensors held, what the allocator held for them, and what of that was of no use."""
    allocated, reserved = window.device_peak_allocated_bytes, window.device_peak_reserved_bytes
    yield _bytes("peak_memory", allocated, "allocated")
    yield _bytes("peak_reserved", reserved, "reserved")
    allocated_of_run = _largest(stage.device_peak_allocated_bytes for stage in stages)
    reserved_of_run = _largest(stage.device_peak_reserved_bytes for stage in stages)
    yield _bytes("run_peak_memory", allocated_of_run, "allocated")
    yield _bytes("run_peak_reserved", reserved_of_run, "reserved")
    unused = None if allocated is None or reserved is None else reserved - allocated
    yield _bytes("fragmentation", unused, "peak_reserved_minus_peak_allocated")
    split = window.device_peak_inactive_split_bytes
    yield _bytes("fragmentation", split, "peak_inactive_split")


def _resident_peaks(run: Run, stages: list[Stage], window: Stage) -> Iterable[Metric]:
    """Resident memory; on a CPU that above the imports is the peak that tables show."""
    peak, reason = window.host_peak_bytes, ""
    if peak is None:
        reason = UNKNOWN_PEAK
    if run.device.type != "cuda":
        imports = run.trace.find("imports")
        before = imports.host_bytes if imports is not None else None
        above = None if peak is None or before is None else max(0, peak - before)
        yield _bytes("peak_memory", above, "rss_above_imports", reason)
    yield _bytes("peak_rss", peak, "rss", reason)
    # Where peaks cannot be forgotten, the process still has that of its whole life.
    peaks = (stage.host_peak_bytes for stage in stages)
    of_run = run.trace.peak_resident_bytes() if peak is None else _largest(peaks)
    yield _bytes("run_peak_rss", of_run, "rss")


def _largest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _bytes(figure: str, value: int | None, kind: str, reason: str = "") -> Metric:
    facts = {
        "name": f"{figure}_bytes",
        "figure": figure,
        "scope": "rank",
        "better": "lower",
        "kind": kind,
        "reason": reason,
    }
    return Metric.model_validate({"value": value, "unit": "bytes", **facts})

"""What disturbs a window from within: compiling again, an allocator that starts over, a jump."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import median

from accel_bench.analysis.checks.pace import seconds_per_token
from accel_bench.machine.device_type import DeviceType
from accel_bench.result import Sample

JUMP = 5.0
"""A step that takes this many times the median, per token, is out of range."""

JUMP_SECONDS = 0.05
"""Shorter hiccups are the operating system's: they do not move a window."""


class WindowMonitor:
    """Compares counters of torch before and after a window, and the durations of its steps."""

    def __init__(self, device: DeviceType) -> None:
        self._device = device
        self._before: dict[str, int] = {}

    def start(self) -> None:
        """Read the counters before a window."""
        self._before = self._counts()

    def instabilities(self, samples: Sequence[Sample]) -> list[str]:
        """Return what disturbed the window since `start`, each as a text."""
        after = self._counts()
        grown = {name: after[name] - self._before.get(name, 0) for name in after}
        found = [f"{count} {name}" for name, count in grown.items() if count > 0]
        if jumps := out_of_range(samples):
            listed = ", ".join(f"step {jump.step} took {jump.seconds:.3g} s" for jump in jumps[:3])
            found.append(f"{listed}, more than {JUMP:g} times the median")
        return found

    def _counts(self) -> dict[str, int]:
        """Return the counters that must stand still in a window."""
        counts = {}
        if "torch._dynamo" in sys.modules:
            counters = sys.modules["torch._dynamo"].utils.counters
            counts["graph(s) compiled within the window"] = counters["stats"]["unique_graphs"]
        if not self._device.on_host:
            retries = self._device.allocation_retries()
            counts["allocator retry(s) within the window"] = retries
        return counts


def out_of_range(samples: Sequence[Sample]) -> list[Sample]:
    """Return the steps that took many times longer per token than the others.

    Per token, since steps hold different numbers of tokens where batches are padded.
    """
    pace = [seconds_per_token(sample) for sample in samples]
    usual = median(pace) if pace else 0.0
    return [
        sample
        for sample, seconds in zip(samples, pace, strict=True)
        if seconds > JUMP * usual and sample.seconds > JUMP_SECONDS
    ]

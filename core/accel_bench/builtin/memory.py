"""`memory`: peak memory of the window: allocated on a GPU, resident above the imports on a CPU."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from pathlib import Path

from accel_bench import Metric, Options, Plugin, Run, Window, hookimpl


class Memory(Plugin[Options]):
    """Measures peak memory per rank."""

    @hookimpl
    def start_metrics(self, run: Run) -> None:
        """Forget earlier peaks."""
        if run.device.type == "cuda":
            sys.modules["torch"].cuda.reset_peak_memory_stats(run.device.index)
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    @hookimpl
    def finish_metrics(self, run: Run, window: Window) -> Iterable[Metric]:
        """Return `peak_memory_bytes`, and what else the device knows."""
        if run.device.type == "cuda":
            cuda = sys.modules["torch"].cuda
            allocated = cuda.max_memory_allocated(run.device.index)
            reserved = cuda.max_memory_reserved(run.device.index)
            yield _bytes("peak_memory_bytes", allocated, "allocated")
            yield _bytes("peak_reserved_bytes", reserved, "reserved")
        else:
            yield _bytes("peak_memory_bytes", _above_imports(run), "rss_above_imports")
        yield _bytes("peak_rss_bytes", peak_resident_bytes(), "rss")


def peak_resident_bytes() -> int | None:
    """Largest resident memory of this process since the peak was last reset; None if not known."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def _above_imports(run: Run) -> int | None:
    """Peak of the window less what the process held after its imports, before data and model."""
    peak, imports = peak_resident_bytes(), run.trace.find("imports")
    if peak is None or imports is None or imports.host_bytes is None:
        return None
    return max(0, peak - imports.host_bytes)


def _bytes(name: str, value: int | None, kind: str) -> Metric:
    return Metric(name=name, value=value, unit="bytes", scope="rank", better="lower", kind=kind)

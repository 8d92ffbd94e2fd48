"""Read the current and peak memory of this process: resident, and torch's on a GPU."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

PEAK_RESIDENT = Path("/proc/self/status")
"""Linux: holds the peak resident memory since its last reset, as `VmHWM`."""

FORGET_PEAK = Path("/proc/self/clear_refs")
"""Linux: a 5 written here resets that peak."""

DEVICE_READINGS = {
    "device_allocated_bytes": "allocated_bytes.all.current",
    "device_peak_allocated_bytes": "allocated_bytes.all.peak",
    "device_reserved_bytes": "reserved_bytes.all.current",
    "device_peak_reserved_bytes": "reserved_bytes.all.peak",
    "device_peak_inactive_split_bytes": "inactive_split_bytes.all.peak",
}
"""Readings of torch's allocator: their names here, and in `torch.cuda.memory_stats`."""


def resident_bytes() -> int | None:
    """Return the resident memory of this process in bytes; None where it cannot be read."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_resident_bytes() -> int | None:
    """Return the peak resident memory since its last reset; None where it cannot be read."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in PEAK_RESIDENT.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def device_bytes() -> dict[str, int]:
    """Return the readings of torch's allocator on the current GPU; empty where it has none.

    Does not synchronise: the allocator's statistics are kept on the host.
    """
    cuda = _started_cuda()
    if cuda is None:
        return {}
    stats = cuda.memory_stats()
    return {name: stats[key] for name, key in DEVICE_READINGS.items() if key in stats}


def reset_peak_memory() -> bool:
    """Reset the peaks; return whether that of the resident memory could be reset."""
    if (cuda := _started_cuda()) is not None:
        cuda.reset_peak_memory_stats()
    try:
        FORGET_PEAK.write_text("5")
    except OSError:
        return False
    return True


def _started_cuda() -> Any:
    """Return `torch.cuda` where this process has initialised it; initialise nothing."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None

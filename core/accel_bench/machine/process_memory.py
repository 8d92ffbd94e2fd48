"""Host and GPU memory of this process at the end of each stage, such as loading the model."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from accel_bench.documents.base import Frozen
from accel_bench.machine.devices import started_device

PEAK_RESIDENT = Path("/proc/self/status")
"""Linux file with the peak resident memory since its last reset, as `VmHWM`."""

FORGET_PEAK = Path("/proc/self/clear_refs")
"""Linux file that resets the peak resident memory when a 5 is written."""


class Stage(Frozen):
    """Stage of a worker process, such as loading the model, with time and memory at its end."""

    name: str
    """Name of the finished stage: `imports`, `load_model`, `first_step` ..."""

    seconds: float
    """Seconds since the process started."""

    host_bytes: int | None = None
    """Resident memory of the process in bytes at the stage's end."""

    host_peak_bytes: int | None = None
    """Peak resident memory in bytes since the stage before; null if unknown."""

    device_allocated_bytes: int | None = None
    """Bytes of tensors on the rank's GPU at the stage's end; null if torch uses no GPU."""

    device_peak_allocated_bytes: int | None = None
    """Peak bytes of tensors on the rank's GPU since the stage before."""

    device_reserved_bytes: int | None = None
    """Bytes reserved by torch's allocator on the GPU, used by tensors or not."""

    device_peak_reserved_bytes: int | None = None
    """Peak bytes reserved by torch's allocator since the stage before."""

    device_peak_inactive_split_bytes: int | None = None
    """Peak bytes in free pieces of partly used blocks, which torch cannot return to the GPU."""


def resident_bytes() -> int | None:
    """Return the resident memory of this process in bytes; None if unreadable."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_resident_bytes() -> int | None:
    """Return the peak resident memory since its last reset in bytes; None if unreadable."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in PEAK_RESIDENT.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def device_bytes() -> dict[str, int]:
    """Return torch's memory readings of the current GPU in bytes; empty if torch uses no GPU.

    Does not synchronise: the allocator's statistics are kept on the host.
    """
    device = started_device()
    return {} if device is None else device.memory()


def reset_peak_memory() -> bool:
    """Reset the peak memory of host and GPU; return whether resetting the host's peak worked."""
    if (device := started_device()) is not None:
        device.reset_peak_memory()
    try:
        FORGET_PEAK.write_text("5")
    except OSError:
        return False
    return True


class Trace:
    """Record of a worker's stages so far, with time and memory at the end of each."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self._origin = _process_started()
        # A process that has just started has the peak of its first stage, whoever can reset it.
        self._own_peak = True

    def mark(self, name: str, forget: bool = True) -> Stage:
        """Record the end of the stage `name`, with the memory peaks since the stage before.

        The peaks are then reset for the next stage. They stay if `forget` is false, so that a
        plugin can read them itself.
        """
        stage = Stage(
            name=name,
            seconds=self.age(),
            host_bytes=resident_bytes(),
            host_peak_bytes=peak_resident_bytes() if self._own_peak else None,
            **device_bytes(),
        )
        self.stages.append(stage)
        if forget:
            self.reset_peak_memory()
        return stage

    def age(self) -> float:
        """Return the seconds since the process started."""
        return time.monotonic() - self._origin

    def reset_peak_memory(self) -> None:
        """Reset the memory peaks, so that the next stage's peaks leave out memory already freed."""
        self._own_peak = reset_peak_memory()

    resident_bytes = staticmethod(resident_bytes)
    peak_resident_bytes = staticmethod(peak_resident_bytes)

    def find(self, name: str) -> Stage | None:
        """Return the ended stage called `name`, or None if there is none yet."""
        return next((stage for stage in self.stages if stage.name == name), None)


def _process_started() -> float:
    """Return the value of time.monotonic() at this process's start, to 10 ms; now if unknown.

    Seconds since then include the interpreter's start and the imports before the first hook.
    """
    now = time.monotonic()
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return now
    return now - age if 0 <= age < now else now

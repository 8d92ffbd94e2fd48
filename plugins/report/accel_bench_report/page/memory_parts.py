"""Memory at the peak by kind, with what is left of the device: of measured figures alone."""

from __future__ import annotations

from typing import NamedTuple

from accel_bench.analysis.metrics.memory import MemoryFigure, MemoryFigures
from accel_bench.result import Result

IMPORTS = "process and imports"
"""Part of a host's memory that is there before any work."""

STAGE_NAMES = {
    "before": IMPORTS,
    "load": "data and model",
    "prepare": "acceleration and optimizer",
}
"""Stages of a run before training, by what they leave behind."""

TRAINING = "training, at its peak"


class MemoryPart(NamedTuple):
    """One kind of memory at the peak."""

    name: str
    bytes: int


class MemoryAtPeak(NamedTuple):
    """What a device holds at the peak of the window, or its host on a CPU."""

    parts: tuple[MemoryPart, ...]
    """Kinds; they add up to the peak."""

    peak: int
    """Bytes."""

    capacity: int | None
    """Bytes that there are; null where that is not known."""

    place: str
    """Whose memory it is: `host`, or the name of a GPU."""

    @property
    def imports(self) -> int:
        """Bytes of the process before any work; 0 if they are not known, or on a GPU."""
        return sum(part.bytes for part in self.parts if part.name == IMPORTS)

    @property
    def headroom(self) -> int | None:
        """Bytes that were left."""
        return None if self.capacity is None else max(0, self.capacity - self.peak)


def memory_at_peak(figures: MemoryFigures | None, run: Result | None) -> MemoryAtPeak | None:
    """Return the memory of a row at its peak; `run` is one of its runs. None without a reading.

    On a GPU tensors come first, by what the stages of the run left, then what torch's allocator
    holds and does not use, then what the driver counts beside it. On a CPU it is resident memory.
    """
    if figures is None or run is None:
        return None
    on_gpu = figures.allocated is not None and figures.allocated.bytes is not None
    peak = _bytes(figures.allocated if on_gpu else figures.rss)
    if peak is None:
        return None
    parts = _by_stage(figures, peak, "allocated" if on_gpu else "rss")
    place, capacity = _device(run, figures.allocated) if on_gpu else _host(run)
    for name, figure in (
        ("held by the allocator, unused", figures.reserved if on_gpu else None),
        ("driver and libraries", figures.nvml if on_gpu else None),
    ):
        larger = _bytes(figure)
        if larger is not None and larger > peak:
            parts = (*parts, MemoryPart(name, larger - peak))
            peak = larger
    return MemoryAtPeak(parts, peak, capacity, place)


def _by_stage(figures: MemoryFigures, peak: int, kind: str) -> tuple[MemoryPart, ...]:
    """Divide a peak into what each stage left and what training adds; whole where that fails."""
    stages = [one for one in figures.stages if one.name in STAGE_NAMES and one.kind == kind]
    parts = tuple(
        MemoryPart(STAGE_NAMES[one.name], one.delta_bytes) for one in stages if one.delta_bytes
    )
    rest = peak - sum(part.bytes for part in parts)
    if not stages or rest < 0 or any(part.bytes < 0 for part in parts):
        return (MemoryPart("tensors" if kind == "allocated" else "process", peak),)
    return (*parts, MemoryPart(TRAINING, rest))


def _bytes(figure: MemoryFigure | None) -> int | None:
    return figure.bytes if figure else None


def _host(run: Result) -> tuple[str, int | None]:
    return "host", run.machine.memory_bytes if run.machine else None


def _device(run: Result, figure: MemoryFigure | None) -> tuple[str, int | None]:
    """Return name and memory of the GPU of the rank that needed most."""
    rank = figure.rank if figure else None
    device = next((one.device for one in run.ranks if one.rank == rank), None)
    gpus = run.machine.gpus if run.machine else ()
    found = next((gpu for gpu in gpus if device and gpu.uuid == device.uuid), None)
    return device.name if device else "GPU", found.memory_bytes if found else None

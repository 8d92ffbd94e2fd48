"""Bars that divide peak memory by its cause, such as loading the model, and show the free rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from accel_bench.analysis.metrics.memory import MemoryFigure, MemoryFigures
from accel_bench.analysis.wording import percent, size
from accel_bench.result import Result
from accel_bench_report.page.waterfall import MOST_ROWS, share_of

if TYPE_CHECKING:
    from accel_bench_report.page.model import RowView

IMPORTS = "process and imports"
"""Kind of host memory that is in use before any work."""

STAGE_NAMES = {
    "before": IMPORTS,
    "load": "data and model",
    "prepare": "acceleration and optimizer",
}
"""Names of the memory that each stage of a run before training leaves in use."""

TRAINING = "training, at its peak"


class MemoryAtPeak(NamedTuple):
    """Peak memory of the measured window, divided by kind: of a GPU, or of the host for a CPU."""

    parts: dict[str, int]
    """Bytes by kind, which add up to the peak."""

    peak: int
    """Peak bytes."""

    capacity: int | None
    """Total bytes of the device or host; null if unknown."""

    place: str
    """Owner of the memory: `host`, or the name of a GPU."""

    @property
    def imports(self) -> int:
        """Bytes of the process before any work; 0 if unknown, or on a GPU."""
        return self.parts.get(IMPORTS, 0)

    @property
    def headroom(self) -> int | None:
        """Bytes free at the peak."""
        return None if self.capacity is None else max(0, self.capacity - self.peak)


def memory_at_peak(figures: MemoryFigures | None, run: Result | None) -> MemoryAtPeak | None:
    """Return the peak memory of a row, divided by kind; None if it was not measured.

    `run` is one of the row's runs. The kinds on a GPU are the tensors of each stage of the run,
    such as loading, then unused memory that torch's allocator reserves, and other memory that the
    driver counts. On a CPU they are the resident memory of each stage.
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
            parts[name] = larger - peak
            peak = larger
    return MemoryAtPeak(parts, peak, capacity, place)


def _by_stage(figures: MemoryFigures, peak: int, kind: str) -> dict[str, int]:
    """Return peak bytes by the stage of the run, such as loading, that took them.

    `kind` is `allocated` for tensors on a GPU, or `rss` for the host. The bytes stay undivided if
    the readings do not add up.
    """
    stages = [stage for stage in figures.stages if stage.name in STAGE_NAMES and stage.kind == kind]
    parts = {STAGE_NAMES[stage.name]: stage.delta_bytes for stage in stages if stage.delta_bytes}
    rest = peak - sum(parts.values())
    if not stages or rest < 0 or min(parts.values(), default=0) < 0:
        return {"tensors" if kind == "allocated" else "process": peak}
    return {**parts, TRAINING: rest}


def _bytes(figure: MemoryFigure | None) -> int | None:
    return figure.bytes if figure else None


def _host(run: Result) -> tuple[str, int | None]:
    return "host", run.machine.memory_bytes if run.machine else None


def _device(run: Result, figure: MemoryFigure | None) -> tuple[str, int | None]:
    """Return name and total bytes of the GPU of the rank with the highest peak.

    `figure` is the memory measurement that names the rank. Unknown bytes are None.
    """
    rank = figure.rank if figure else None
    device = next((result.device for result in run.ranks if result.rank == rank), None)
    gpus = run.machine.gpus if run.machine else ()
    used = next((gpu for gpu in gpus if device and gpu.uuid == device.uuid), None)
    return device.name if device else "GPU", used.memory_bytes if used else None


class PartView(NamedTuple):
    """Bytes of one kind of memory, as a piece of a bar."""

    name: str
    size: str
    width: str
    shade: int


class MemoryView(NamedTuple):
    """Bar that shows the peak memory of one row."""

    row: RowView
    text: str
    parts: Sequence[PartView]
    """Kinds of memory, except memory of imports."""


def memory_views(rows: Sequence[RowView]) -> tuple[list[MemoryView], str]:
    """Return the memory bars of completed rows on one scale, and a note on the scale.

    Bars leave out the memory of imports, which is equal for all stacks and may exceed the memory of
    a model.
    """
    measured = [
        (row, row.row.memory) for row in rows if row.row.memory and not row.row.why_not_ranked
    ]
    shown = measured[:MOST_ROWS]
    most = max((memory.peak - memory.imports for _, memory in shown), default=0)
    note = (
        f"The longest bar is {size(most)}." if any(memory.capacity for _, memory in shown) else ""
    )
    if any(memory.imports for _, memory in shown):
        note = f"A bar begins after the imports. {note}".rstrip()
    return [_memory_view(row, memory, most) for row, memory in shown], note


def _memory_view(row: RowView, memory: MemoryAtPeak, most: int) -> MemoryView:
    whole = ", the whole process" if memory.place == "host" else ""
    imports = f", {size(memory.imports)} of it imports" if memory.imports else ""
    left = ""
    if memory.headroom is not None and memory.capacity:
        share = percent(memory.headroom / memory.capacity)
        left = f", {size(memory.headroom)} ({share}) of the {memory.place}'s left"
    drawn = {name: held for name, held in memory.parts.items() if name != IMPORTS}
    parts = [
        PartView(name, size(held), share_of(held, most), round(30 + 70 * number / len(drawn)))
        for number, (name, held) in enumerate(drawn.items(), 1)
    ]
    return MemoryView(row, f"{size(memory.peak)} at the peak{whole}{imports}{left}", parts)

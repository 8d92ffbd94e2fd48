"""Memory of a row: which rank needed most, and at which stage of its life."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby
from statistics import median
from typing import NamedTuple

from accel_bench.documents.base import Frozen
from accel_bench.machine.process_memory import Stage
from accel_bench.result import Figure, RankResult, Result

STAGE_ENDS = (("before", "imports"), ("load", "load_model"), ("prepare", "build"))
"""Stages before training as they are shown, and the mark that ends each."""

BESIDE_TRAINING = {"evaluate": "evaluate", "predict": "predict", "learning": "learn"}
"""Marks that end stages of their own, between those of `train`, and names of these."""


class StageMemory(Frozen):
    """What one stage of a rank's life did to its memory."""

    name: str
    """`before`, `load`, `prepare`, `train`, `evaluate`, `learn` or `predict`; the first delta is
    what there was before."""

    kind: str
    """`allocated` by tensors on a GPU, or `rss`: resident memory of a process on a CPU."""

    delta_bytes: int
    """Bytes at its end less those at its beginning."""

    peaked_delta_bytes: int | None
    """Bytes that it used and freed again, above what it left; null where no peak is known."""


class MemoryFigure(Frozen):
    """Bytes of the rank that needed most: medians over runs."""

    bytes: int | None
    """Peak of the window; null where one rank's is not known, since it may be the largest."""

    rank: int | None
    """The rank that had it, in most runs."""

    kind: str
    """How it was measured, in the words of the metric."""

    run_bytes: int | None = None
    """Peak of the whole run, before and after the window included."""

    run_rank: int | None = None
    """The rank that had that."""


class MemoryFigures(Frozen):
    """Memory of an experiment; null for what was not measured."""

    allocated: MemoryFigure | None = None
    """Held by tensors on a GPU."""

    reserved: MemoryFigure | None = None
    """Held by torch's allocator there; at least what tensors hold."""

    nvml: MemoryFigure | None = None
    """Held by the process as the driver sees it; at least what the allocator holds."""

    rss: MemoryFigure | None = None
    """Resident memory on the host."""

    fragmentation: MemoryFigure | None = None
    """Reserved less allocated, both at their peaks."""

    saved_for_backward: MemoryFigure | None = None
    """What autograd keeps of one micro-batch's forward pass."""

    stages: tuple[StageMemory, ...] = ()
    """Stages of the rank that peaked highest, in the last run."""


class Source(NamedTuple):
    """Figures of metrics from which memory is read, of the window and of the whole run."""

    window: Figure
    run: Figure | None
    kinds: tuple[str, ...]
    """Ways of measuring it, the best first."""


SOURCES = {
    "allocated": Source("peak_memory", "run_peak_memory", ("allocated",)),
    "reserved": Source("peak_reserved", "run_peak_reserved", ("reserved",)),
    "nvml": Source("peak_driver", "run_peak_driver", ("process", "device_above_start")),
    "rss": Source("peak_rss", "run_peak_rss", ("rss",)),
    "fragmentation": Source("fragmentation", None, ("peak_reserved_minus_peak_allocated",)),
    "saved_for_backward": Source("saved_for_backward", None, ("one_forward_of_a_micro_batch",)),
}
"""Figures of metrics by the name that they have here."""


def stage_peaks(stages: Iterable[tuple[int, int | None]]) -> tuple[int, int | None]:
    """Return bytes allocated, and their peak, of stages as (delta, peaked delta) in their order.

    The sums run over the stages. Allocated is the largest of them, the peak the largest of what a
    stage used for a while above its sum; null where a stage does not know that. At least one stage.
    """
    known = list(stages)
    sums = list(accumulate(delta for delta, _ in known))
    peaked = [delta for _, delta in known if delta is not None]
    if len(peaked) < len(known):
        return max(sums), None
    return max(sums), max(total + delta for total, delta in zip(sums, peaked, strict=True))


def stages_of(rank: RankResult) -> tuple[StageMemory, ...]:
    """Group the marks of a rank's life into stages; none where a reading is missing.

    Marks in between, of whatever name, belong to the stage whose end comes next.
    """
    on_gpu = any(stage.device_allocated_bytes is not None for stage in rank.stages)
    stages: list[StageMemory] = []
    before = 0
    for name, marks in _grouped(rank.stages):
        readings = [_reading(mark, on_gpu) for mark in marks]
        after = readings[-1][0]
        if after is None:
            return ()
        peaks = [peak for _, peak in readings if peak is not None]
        known = len(peaks) == len(readings)
        stages.append(
            StageMemory(
                name=name,
                kind="allocated" if on_gpu else "rss",
                delta_bytes=after - before,
                peaked_delta_bytes=max(0, max(peaks) - after) if known else None,
            )
        )
        before = after
    return tuple(stages)


def largest(result: Result, figure: Figure | None, kind: str) -> tuple[int, int] | None:
    """Return the largest value of a figure over the ranks, and the rank that had it.

    None without a figure or any value, and as soon as one is not known: it may be the largest.
    """
    if figure is None:
        return None
    seen = [(metric, rank.rank) for rank in result.ranks for metric in rank.metrics]
    seen += [(metric, metric.rank) for metric in result.metrics if metric.rank is not None]
    own = [
        (metric.value, rank)
        for metric, rank in seen
        if (metric.figure, metric.kind) == (figure, kind)
    ]
    known = [(int(value), rank) for value, rank in own if value is not None]
    if not known or len(known) < len(own):
        return None
    return max(known, key=lambda one: (one[0], -one[1]))


def peak_memory(runs: Sequence[Result]) -> tuple[int | None, str | None]:
    """Return the bytes of the rank that needed most, a median over runs, and their kind."""
    metrics = (metric for run in runs for rank in run.ranks for metric in rank.metrics)
    kind = next((metric.kind for metric in metrics if metric.figure == "peak_memory"), None)
    if kind is None:
        return None, None
    return _median(runs, "peak_memory", kind)[0], kind or None


def memory_figures(runs: Sequence[Result]) -> MemoryFigures | None:
    """Return all figures over the completed runs of an experiment; None without any run."""
    if not runs:
        return None
    figures = {name: _figure(runs, source) for name, source in SOURCES.items()}
    return MemoryFigures(**figures, stages=_highest_stages(runs[-1]))


def _figure(runs: Sequence[Result], source: Source) -> MemoryFigure | None:
    """Return one figure, by the best way of measuring that gives any."""
    for kind in source.kinds:
        bytes_used, rank = _median(runs, source.window, kind)
        run_bytes, run_rank = _median(runs, source.run, kind)
        if bytes_used is not None or run_bytes is not None:
            return MemoryFigure(
                bytes=bytes_used, rank=rank, kind=kind, run_bytes=run_bytes, run_rank=run_rank
            )
    return None


def _median(
    runs: Sequence[Result], figure: Figure | None, kind: str
) -> tuple[int | None, int | None]:
    """Return the median over runs of the largest, and the rank that had it most often."""
    peaks = [peak for run in runs if (peak := largest(run, figure, kind)) is not None]
    if not peaks:
        return None, None
    rank = Counter(rank for _, rank in peaks).most_common(1)[0][0]
    return round(median(size for size, _ in peaks)), rank


def _highest_stages(run: Result) -> tuple[StageMemory, ...]:
    """Return the stages of the rank with the highest peak, or most allocated where it has none."""

    def peak_of(stages: Sequence[StageMemory]) -> int:
        allocated, peak = stage_peaks((s.delta_bytes, s.peaked_delta_bytes) for s in stages)
        return allocated if peak is None else peak

    return max(filter(None, map(stages_of, run.ranks)), key=peak_of, default=())


def _grouped(marks: Sequence[Stage]) -> Iterable[tuple[str, list[Stage]]]:
    """Yield the marks of each stage that was reached."""
    left = list(marks)
    for name, last in STAGE_ENDS:
        end = next((i for i, mark in enumerate(left, start=1) if mark.name == last), len(left))
        if part := left[:end]:
            yield name, part
        left = left[end:]
    for name, same in groupby(left, lambda mark: BESIDE_TRAINING.get(mark.name, "train")):
        yield name, list(same)


def _reading(mark: Stage, on_gpu: bool) -> tuple[int | None, int | None]:
    """Return bytes at a mark, and the peak before it; a GPU that torch has not used holds none."""
    if not on_gpu:
        return mark.host_bytes, mark.host_peak_bytes
    return mark.device_allocated_bytes or 0, mark.device_peak_allocated_bytes or 0

"""Memory of an experiment: its peak over ranks, and the changes by stage."""

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
"""Stages before training, each with the name of the reading (mark) at its end."""

BESIDE_TRAINING = {"evaluate": "evaluate", "predict": "predict", "learning": "learn"}
"""Names of the marks that end stages other than `train`, with the stages' names."""


class StageMemory(Frozen):
    """Change of a rank's memory in one stage."""

    name: str
    """Name of the stage: `before`, `load`, `prepare`, `train`, `evaluate`, `learn` or `predict`;
    the first delta is the initial memory."""

    kind: str
    """Kind of memory: `allocated` by tensors on a GPU, or `rss`, the resident memory of a process
    on a CPU."""

    delta_bytes: int
    """Bytes at the end of the stage minus the bytes at its beginning."""

    peaked_delta_bytes: int | None
    """Bytes that were used temporarily, above the final bytes; null without a known peak."""


class MemoryFigure(Frozen):
    """Peak bytes of the rank that needed most: medians over runs."""

    bytes: int | None
    """Peak bytes of the window; null if any rank's is unknown."""

    rank: int | None
    """Rank with this peak in most runs."""

    kind: str
    """Kind of measurement, by the name of the metric."""

    run_bytes: int | None = None
    """Peak bytes of the whole run, before and after the window included."""

    run_rank: int | None = None
    """Rank with the peak of the whole run in most runs."""


class MemoryFigures(Frozen):
    """Memory of an experiment; null for unmeasured figures."""

    allocated: MemoryFigure | None = None
    """Memory of tensors on a GPU."""

    reserved: MemoryFigure | None = None
    """Memory reserved by torch's GPU allocator; at least the memory of tensors."""

    nvml: MemoryFigure | None = None
    """GPU memory of the process as the driver reports it; at least the allocator's."""

    rss: MemoryFigure | None = None
    """Resident memory on the host."""

    fragmentation: MemoryFigure | None = None
    """Peak of reserved minus peak of allocated memory, in bytes."""

    saved_for_backward: MemoryFigure | None = None
    """Memory saved by autograd in one micro-batch's forward pass."""

    stages: tuple[StageMemory, ...] = ()
    """Stages of the rank with the highest peak, in the last run."""


class Source(NamedTuple):
    """Names of the metrics of one memory figure, for the window and for the whole run."""

    window: Figure
    run: Figure | None
    kinds: tuple[str, ...]
    """Kinds of measurement, the preferred first."""


SOURCES = {
    "allocated": Source("peak_memory", "run_peak_memory", ("allocated",)),
    "reserved": Source("peak_reserved", "run_peak_reserved", ("reserved",)),
    "nvml": Source("peak_driver", "run_peak_driver", ("process", "device_above_start")),
    "rss": Source("peak_rss", "run_peak_rss", ("rss",)),
    "fragmentation": Source("fragmentation", None, ("peak_reserved_minus_peak_allocated",)),
    "saved_for_backward": Source("saved_for_backward", None, ("one_forward_of_a_micro_batch",)),
}
"""Metrics of memory by the name of their figure."""


def stage_peaks(stages: Iterable[tuple[int, int | None]]) -> tuple[int, int | None]:
    """Return the most allocated bytes after any stage, and the peak bytes within any stage.

    Each of `stages`, at least one, is a pair: the change of bytes by the stage, and the height of
    the stage's peak above its end. If any such height is None, the peak is None.
    """
    known = list(stages)
    sums = list(accumulate(delta for delta, _ in known))
    peaked = [delta for _, delta in known if delta is not None]
    if len(peaked) < len(known):
        return max(sums), None
    return max(sums), max(total + delta for total, delta in zip(sums, peaked, strict=True))


def stages_of(rank: RankResult) -> tuple[StageMemory, ...]:
    """Return a rank's memory by stage, from its readings (marks); empty if the bytes at a stage's
    end are unknown. A mark within a stage belongs to the stage that ends next."""
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
    """Return the largest value in bytes of a memory figure over the ranks, and its rank's number.

    `kind` is the kind of measurement. Returns None without `figure`, or if any value is unknown.
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
    return max(known, key=lambda peak: (peak[0], -peak[1]))


def peak_memory(runs: Sequence[Result]) -> tuple[int | None, str | None]:
    """Return the largest rank's peak bytes, median over runs, and their kind; None if unknown."""
    metrics = (metric for run in runs for rank in run.ranks for metric in rank.metrics)
    kind = next((metric.kind for metric in metrics if metric.figure == "peak_memory"), None)
    if kind is None:
        return None, None
    return _median(runs, "peak_memory", kind)[0], kind or None


def memory_figures(runs: Sequence[Result]) -> MemoryFigures | None:
    """Return peaks and stages of memory over an experiment's completed runs; None without a run."""
    if not runs:
        return None
    figures = {name: _figure(runs, source) for name, source in SOURCES.items()}
    return MemoryFigures(**figures, stages=_highest_stages(runs[-1]))


def _figure(runs: Sequence[Result], source: Source) -> MemoryFigure | None:
    """Return a figure's peaks by the first kind of measurement in `source` with values, or None."""
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
    """Return the largest rank's bytes, as a median over runs, and the most frequent such rank."""
    peaks = [peak for run in runs if (peak := largest(run, figure, kind)) is not None]
    if not peaks:
        return None, None
    rank = Counter(rank for _, rank in peaks).most_common(1)[0][0]
    return round(median(size for size, _ in peaks)), rank


def _highest_stages(run: Result) -> tuple[StageMemory, ...]:
    """Return the stages of the rank with the highest peak, or most allocated bytes if unknown."""

    def peak_of(stages: Sequence[StageMemory]) -> int:
        allocated, peak = stage_peaks((s.delta_bytes, s.peaked_delta_bytes) for s in stages)
        return allocated if peak is None else peak

    return max(filter(None, map(stages_of, run.ranks)), key=peak_of, default=())


def _grouped(marks: Sequence[Stage]) -> Iterable[tuple[str, list[Stage]]]:
    """Yield the name of each reached stage, with the readings (marks) that belong to it."""
    left = list(marks)
    for name, last in STAGE_ENDS:
        end = next((i for i, mark in enumerate(left, start=1) if mark.name == last), len(left))
        if part := left[:end]:
            yield name, part
        left = left[end:]
    for name, same in groupby(left, lambda mark: BESIDE_TRAINING.get(mark.name, "train")):
        yield name, list(same)


def _reading(mark: Stage, on_gpu: bool) -> tuple[int | None, int | None]:
    if not on_gpu:
        return mark.host_bytes, mark.host_peak_bytes
    return mark.device_allocated_bytes or 0, mark.device_peak_allocated_bytes or 0

"""Parts of a run's time: start-up, phases of a step, and reading the change of weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from statistics import fmean, median

from accel_bench.analysis.statistics.estimators import median_of_known, t_bound
from accel_bench.documents.base import Frozen
from accel_bench.result import RankResult, Result, WeightUpdate

STAGES = {
    "imports": "imports_seconds",
    "load_data": "load_data_seconds",
    "load_model": "load_model_seconds",
    "accelerate_model": "accelerate_seconds",
    "build": "build_seconds",
    "warm-up": "warmup_seconds",
}
"""Stages of a worker in order, each with the name of the figure for its seconds."""


BYTES_OF_A_SUM = 8
"""Bytes of each sum in the sketch of a tensor, a float64."""


class StartUp(Frozen):
    """Start-up of a run, in seconds of its slowest rank; null for stages not reached."""

    imports_seconds: float | None = None
    """Seconds from the process's start until imports are done and ranks are connected."""

    load_data_seconds: float | None = None
    """Seconds of loading the data, possibly from a cache filled by `prepare_experiment`."""

    load_model_seconds: float | None = None
    """Seconds of building or loading the model."""

    accelerate_seconds: float | None = None
    """Seconds of adding the adapter and accelerating the model."""

    build_seconds: float | None = None
    """Seconds of lazy compilation, wrapping, and building optimizer and batches."""

    warmup_seconds: float | None = None
    """Seconds of building the engine, and of all steps before the window."""

    first_step_seconds: float | None = None
    """Seconds of the first step, with its compilation and allocations."""

    compile_seconds: float | None = None
    """Seconds in the compiler, as it reports them; null if nothing was compiled."""


class Phases(Frozen):
    """Seconds of a step by phase, of the slowest rank: medians over runs."""

    step_seconds: float
    """Seconds of a whole step that is split into phases, taken after the window."""

    to_window: float | None = None
    """Ratio of the split step to the window's median step; the split is flagged if it is 5 % away
    from 1."""

    data: float | None = None
    """Seconds of loading batches and copying them to the device."""

    forward: float | None = None
    """Seconds of forward passes."""

    backward: float | None = None
    """Seconds of backward passes, including gradient reduction over ranks."""

    optimizer: float | None = None
    """Seconds of clipping, updating, and clearing gradients."""


class TimeChange(Frozen):
    """Seconds of a part of the work in A and in B, with their difference: one bar of a chart."""

    a: float
    b: float

    change: float
    """B minus A: negative if B is faster."""

    low: float | None
    """Lower end of the 95 % interval of the change over rounds; null with fewer than two."""

    high: float | None
    """Upper end of the 95 % interval of the change; null with fewer than two rounds."""

    @classmethod
    def over(cls, *pairs: tuple[float, float]) -> TimeChange:
        """Return the mean times and their mean difference, from the times (A, B) of each round."""
        differences = [b - a for a, b in pairs]
        mean = fmean(differences)
        half = t_bound(differences, 0.975) if len(differences) > 1 else None
        low, high = (None, None) if half is None else (mean - half, mean + half)
        a, b = (fmean(side) for side in zip(*pairs, strict=True))
        return cls(a=a, b=b, change=mean, low=low, high=high)

    @property
    def is_sure(self) -> bool:
        """True if the interval excludes 0, or is missing."""
        return self.low is None or self.high is None or self.low > 0 or self.high < 0


class UpdateCost(Frozen):
    """Cost of reading the update outside of all windows, on rank 0 of the last completed run."""

    trained_tensors: int
    """Number of tensors that were read twice: before the first step, and after the window."""

    trained_elements: int
    """Number of elements of these tensors."""

    seconds: float
    """Seconds of both readings, including the file."""

    sketch_bytes: int
    """Bytes of the float64 sketches, which the process holds until the end of the window."""

    kept_bytes: int
    """Bytes of the file with the exact update; 0 if none was kept."""

    kept_reason: str
    """Reason why a requested exact update was not kept."""


def start_up(runs: Iterable[Result]) -> StartUp | None:
    """Return the start-up seconds by stage, as medians over runs; None without a run."""
    figures = [_start_up(run) for run in runs]
    if not figures:
        return None
    return StartUp(
        **{key: median_of_known(row.get(key) for row in figures) for key in StartUp.model_fields}
    )


def phases(runs: Sequence[Result]) -> Phases | None:
    """Return a step's seconds by phase, as medians over runs; None if no engine marked phases."""
    ranks = [rank for run in runs if (rank := _slowest(run)) is not None]
    splits = [rank.phases for rank in ranks if rank.phases is not None]
    if not splits:
        return None
    names = dict.fromkeys(name for split in splits for name in split.seconds)
    return Phases(
        step_seconds=median(split.step_seconds for split in splits),
        to_window=median_of_known(_to_window(rank) for rank in ranks),
        **{name: median_of_known(split.seconds.get(name) for split in splits) for name in names},
    )


def _start_up(run: Result) -> dict[str, float]:
    """Return the start-up seconds of one run by name, each from the slowest rank."""
    longest: dict[str, float] = {}
    for rank in run.ranks:
        for name, seconds in _of_rank(rank).items():
            longest[name] = max(seconds, longest.get(name, 0.0))
    return longest


def _of_rank(rank: RankResult) -> dict[str, float]:
    """Return a rank's seconds by name: of each stage, of the first step, and of compilation."""
    starts = [0.0, *(stage.seconds for stage in rank.stages)]
    figures = {
        STAGES[stage.name]: stage.seconds - start
        for stage, start in zip(rank.stages, starts, strict=False)
        if stage.name in STAGES
    }
    if rank.window is not None and rank.window.warmup:
        figures["first_step_seconds"] = rank.window.warmup[0].seconds
    compiled = rank.effective.compilation
    if compiled is not None and compiled.compile_seconds:
        figures["compile_seconds"] = compiled.compile_seconds
    return figures


def _slowest(run: Result) -> RankResult | None:
    """Return the rank whose step, split into phases, was slowest; None if a rank split none."""
    splits = [(rank.phases.step_seconds, rank) for rank in run.ranks if rank.phases is not None]
    if not splits or len(splits) < len(run.ranks):
        return None
    return max(splits, key=itemgetter(0))[1]


def _to_window(rank: RankResult) -> float | None:
    if rank.phases is None or rank.window is None:
        return None
    usual = median(sample.seconds for sample in rank.window.samples)
    return rank.phases.step_seconds / usual if usual else None


def update_cost(update: WeightUpdate) -> UpdateCost:
    """Return the seconds and bytes that reading one rank's update took."""
    sums = sum(len(tensor.sketch) for tensor in update.tensors.values())
    same = update.model_dump(include=UpdateCost.model_fields.keys() - {"sketch_bytes"})
    return UpdateCost(**same, sketch_bytes=BYTES_OF_A_SUM * sums)

"""Parts of a run's time: before the window once, within a step every time, and for the update."""

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
"""Stages of a worker, in the order in which they end, and the figure that each becomes."""


BYTES_OF_A_SUM = 8
"""A sketch is summed in float64."""


class StartUp(Frozen):
    """What a run pays once, in seconds of its slowest rank; null where a stage was not reached."""

    imports_seconds: float | None = None
    """From the start of the process until hooks have imported what they need and ranks have met."""

    load_data_seconds: float | None = None
    """Loading the data, from a cache where `prepare_experiment` filled one."""

    load_model_seconds: float | None = None
    """Making or loading the model."""

    accelerate_seconds: float | None = None
    """Adding the adapter and accelerating the model."""

    build_seconds: float | None = None
    """Compiling lazily, wrapping, and building optimizer and batches."""

    warmup_seconds: float | None = None
    """Building the engine, and all steps before the window."""

    first_step_seconds: float | None = None
    """The first step alone, with what it compiles and allocates."""

    compile_seconds: float | None = None
    """Time in the compiler, by its own count; null where nothing was compiled."""


class Phases(Frozen):
    """Seconds of a step by phase: medians over runs of the slowest rank's."""

    step_seconds: float
    """The whole step that was split, one after the window."""

    to_window: float | None = None
    """Its time over the window's median step: the split is flagged where it is 5 % away from 1."""

    data: float | None = None
    """Getting batches, and copying them to the device."""

    forward: float | None = None
    """Forward passes."""

    backward: float | None = None
    """Backward passes, with what joins gradients over ranks."""

    optimizer: float | None = None
    """Clipping, the update, and letting gradients go."""


class TimeChange(Frozen):
    """What a part of the time takes in A and in B, in one unit: a bar of a waterfall."""

    a: float
    b: float

    change: float
    """B less A: below 0 it gained, above 0 it lost."""

    low: float | None
    """Lower end of the 95 % interval of the change over rounds; null with fewer than two."""

    high: float | None
    """Upper end; null with fewer than two."""

    @classmethod
    def over(cls, *pairs: tuple[float, float]) -> TimeChange:
        """Return the means of pairs, a pair for each round, and of their differences."""
        differences = [b - a for a, b in pairs]
        mean = fmean(differences)
        half = t_bound(differences, 0.975) if len(differences) > 1 else None
        low, high = (None, None) if half is None else (mean - half, mean + half)
        a, b = (fmean(side) for side in zip(*pairs, strict=True))
        return cls(a=a, b=b, change=mean, low=low, high=high)

    @property
    def is_sure(self) -> bool:
        """True if the interval leaves 0 out; without an interval nothing contradicts it."""
        return self.low is None or self.high is None or self.low > 0 or self.high < 0


class UpdateCost(Frozen):
    """The cost of reading the update, outside of all windows: rank 0 of the last completed run."""

    trained_tensors: int
    """Tensors that were read twice: before the first step, and after the window."""

    trained_elements: int
    """Their numbers."""

    seconds: float
    """Seconds of both readings, with those of the file."""

    sketch_bytes: int
    """Bytes of the sketches as float64, which the process holds until the window has ended."""

    kept_bytes: int
    """Bytes of the file with the exact change; 0 where none was kept."""

    kept_reason: str
    """Why none was kept that was asked for."""


def start_up(runs: Iterable[Result]) -> StartUp | None:
    """Return each figure's median over runs; None without a run."""
    figures = [_start_up(run) for run in runs]
    if not figures:
        return None
    return StartUp(
        **{key: median_of_known(one.get(key) for one in figures) for key in StartUp.model_fields}
    )


def phases(runs: Sequence[Result]) -> Phases | None:
    """Return each phase's median over runs; None where no engine marked any."""
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
    """Return one run's figures, each of the rank that took longest."""
    longest: dict[str, float] = {}
    for rank in run.ranks:
        for name, seconds in _of_rank(rank).items():
            longest[name] = max(seconds, longest.get(name, 0.0))
    return longest


def _of_rank(rank: RankResult) -> dict[str, float]:
    """Return seconds between the ends of consecutive stages, and of the first step."""
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
    """Return the rank whose split step took longest; None when any rank has none."""
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
    """Return the cost of one rank's update."""
    sums = sum(len(one.sketch) for one in update.tensors.values())
    same = update.model_dump(include=UpdateCost.model_fields.keys() - {"sketch_bytes"})
    return UpdateCost(**same, sketch_bytes=BYTES_OF_A_SUM * sums)

"""How alike trainings with other seeds end."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from accel_bench.analysis.learning.groups import LearningGroup, lasts
from accel_bench.analysis.learning.schema import Stability
from accel_bench.analysis.statistics.bootstrap import bootstrap_ends
from accel_bench.analysis.statistics.estimators import Interval

MINIMUM_SEEDS = 3
"""Seeds from which a spread is given."""


def stability_of(group: LearningGroup) -> Stability:
    """Return the spread of the losses at the end, and how many seeds diverged."""
    ends = [loss for _, loss in lasts(group)]
    return Stability(
        seeds=len(group.seeds),
        diverged=sum(one.diverged for one in group.seeds),
        mean=fmean(ends) if ends else None,
        lowest=min(ends, default=None),
        highest=max(ends, default=None),
        standard_deviation=_spread(ends),
    )


def _spread(ends: Sequence[float]) -> Interval | None:
    if len(ends) < MINIMUM_SEEDS:
        return None
    low, high = bootstrap_ends([[end] for end in ends], _deviation) or (None, None)
    return Interval(median=stdev(ends), low=low, high=high)


def _deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0

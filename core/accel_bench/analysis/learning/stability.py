"""How alike trainings with other seeds end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from accel_bench.analysis.learning.groups import LearningGroup, lasts
from accel_bench.analysis.learning.schema import Stability
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
    """Return the standard deviation with its 95 % chi-squared interval.

    A bootstrap of few values draws the same one again and again, and would begin at 0.
    """
    from scipy.special import chdtri

    if len(ends) < MINIMUM_SEEDS:
        return None
    found, freedom = stdev(ends), len(ends) - 1
    low, high = (found * math.sqrt(freedom / chdtri(freedom, tail)) for tail in (0.025, 0.975))
    return Interval(median=found, low=low, high=high)

"""Bootstrap intervals over seeds, and over the rounds of each.

Source: Efron and Tibshirani (1993), "An Introduction to the Bootstrap". Percentile intervals of few
values are too narrow; their ends are moved outwards as in Hesterberg (2015), "What teachers should
know about the bootstrap", section 3.3: by the quantile of Student's t, and sqrt(n / (n - 1)).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from statistics import NormalDist

from accel_bench.analysis.statistics.estimators import t_quantile

RESAMPLES = 2000
"""Samples that are drawn anew."""

SEED = 20_240_613
"""Seed of the draws: the same values give the same interval."""


def bootstrap_ends(
    clusters: Sequence[Sequence[float]], statistic: Callable[[Sequence[float]], float]
) -> tuple[float, float] | None:
    """Return the ends of the 95 % interval of a statistic; None with one value.

    Clusters are seeds, their values the rounds of a seed: seeds are drawn with replacement, and
    then as many values as each has; of one cluster its values alone. A value may be infinite, and
    then so may be an end.
    """
    units = len(clusters) if len(clusters) > 1 else sum(map(len, clusters))
    if units < 2:
        return None
    draw = Random(SEED).choices
    found = sorted(
        statistic([x for one in draw(clusters, k=len(clusters)) for x in draw(one, k=len(one))])
        for _ in range(RESAMPLES)
    )
    tail = expanded_tail(units)
    last = len(found) - 1
    return found[math.floor(tail * last)], found[math.ceil((1 - tail) * last)]


def expanded_tail(units: int) -> float:
    """Return the probability of each tail of the bootstrap distribution of so many values."""
    return NormalDist().cdf(-math.sqrt(units / (units - 1)) * t_quantile(units - 1, 0.975))

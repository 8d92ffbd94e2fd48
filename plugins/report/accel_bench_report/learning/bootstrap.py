"""Bootstrap intervals over seeds, and over the rounds of each seed.

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
"""Number of bootstrap resamples."""

SEED = 20_240_613
"""Seed of the bootstrap resamples, fixed so that equal values give equal intervals."""


def bootstrap_ends(
    clusters: Sequence[Sequence[float]], statistic: Callable[[Sequence[float]], float]
) -> tuple[float, float] | None:
    """Return the ends of the 95 % bootstrap interval of a statistic; None for less than two values.

    Clusters are seeds, each with the values of its rounds: seeds are resampled with replacement,
    then values within each seed. A single cluster has only its values resampled. Infinite values
    may give infinite ends.
    """
    units = len(clusters) if len(clusters) > 1 else sum(map(len, clusters))
    if units < 2:
        return None
    draw = Random(SEED).choices
    values = sorted(
        statistic([x for seed in draw(clusters, k=len(clusters)) for x in draw(seed, k=len(seed))])
        for _ in range(RESAMPLES)
    )
    tail = expanded_tail(units)
    last = len(values) - 1
    return values[math.floor(tail * last)], values[math.ceil((1 - tail) * last)]


def expanded_tail(units: int) -> float:
    """Return the probability of each tail outside a 95 % interval, corrected for few values.

    `units` is the number of values, at least 2.
    """
    return NormalDist().cdf(-math.sqrt(units / (units - 1)) * t_quantile(units - 1, 0.975))

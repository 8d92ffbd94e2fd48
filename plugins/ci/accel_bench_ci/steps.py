"""Search for steps, lasting changes of the level, in a series with drift, autocorrelation and
outliers.

The method is binary segmentation (Scott and Knott 1974): take the split at which the two sides
differ most, then repeat within each side. So that a series without steps rarely shows one, a split
is a step only if all of this holds:

- a permutation test of the largest difference over all splits (CUSUM) calls it significant. The
  permuted values are the residuals after a robust estimate of the autocorrelation (Chakar,
  Lebarbier, Levy-Leduc and Robin 2017, "A robust approach for estimating change-points in the mean
  of an AR(1) process") and of the drift (Theil and Sen, from pairs on the same side of the split).
  Values beyond three robust standard deviations count as three (Huber);
- the level jumps there and does not drift: medians of the neighboring values on both sides differ
  by most of the step, also after their own slope is removed;
- the step is larger than the smallest relevant step.

Permutations are drawn from a fixed seed: the same series has the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

STEP_ALPHA = 0.001
"""Significance level: probability that a step is found in a series of independent values.

Series with autocorrelation, drift or oscillation have more false steps, so new runs confirm alarms.
"""

PERMUTATIONS = 3999
"""Number of permutations of each test."""

BLOCKS = 1.5
"""Block length of the variance estimate, divided by the cube root of the series' length."""

SHORTEST_SIDE = 5
"""Minimum number of values on each side of a step."""

SHORTEST_SERIES = 14
"""Minimum number of values of a series; fewer values have too few permutations for significance."""

LONGEST_SERIES = 500
"""Maximum number of values that are searched for steps, the newest of a series."""

NEIGHBOURS = 10
"""Number of values on each side of a split that show whether the level jumps."""

DEVIATIONS = 4.0
"""Minimum size of a step, in robust standard deviations of the noise and of jumps elsewhere."""

LIMIT = 3.0
"""Distance from the median at which values are clipped, in robust standard deviations."""

SMALLEST_STEP = math.log1p(0.02)
"""Log-ratio of the smallest relevant step: 2 %."""

CHANCE = 0.75
"""Autocorrelation attributed to chance, times the square root of the number of values."""

TINY = 1e-12
"""Variance below which values count as equal except for rounding errors."""

SEED = 20260105
"""Seed of the permutations."""

MAD_TO_SIGMA = 1.4826
"""Ratio of a normal distribution's standard deviation to its median absolute deviation."""


class Step(NamedTuple):
    """Lasting change of the level of a series."""

    place: int
    """Index of the first value at the new level."""

    before: float
    """Median of the values between the previous step and this one."""

    after: float
    """Median of the values from this step to the next."""

    p_value: float
    """Probability of an equally large difference anywhere in a series without a step."""

    @property
    def size(self) -> float:
        """New level minus old level."""
        return self.after - self.before


def find_steps(values: Sequence[float]) -> list[Step]:
    """Return the steps of a series in order. If `values` are logarithms, sizes of steps are
    log-ratios.

    Only the newest `LONGEST_SERIES` values are searched. Indices refer to `values`.
    """
    offset = max(0, len(values) - LONGEST_SERIES)
    series = list(values[offset:])
    split = dict(_splits(series))
    places = {place: split[place] for place in split if _stands_out(series, place, split)}
    if not places:
        return []
    edges = [0, *sorted(places), len(values) - offset]
    levels = [median(values[offset + a : offset + b]) for a, b in pairwise(edges)]
    return [
        Step(offset + index, levels[place], levels[place + 1], places[index])
        for place, index in enumerate(sorted(places))
    ]


def _splits(values: list[float]) -> list[tuple[int, float]]:
    """Return index and p-value of each step in a segment of a series, by binary segmentation."""
    if len(values) < SHORTEST_SERIES:
        return []
    # Few values show much memory by chance, and to take it out would take out any step.
    correlation = max(0.0, autocorrelation(values) - CHANCE / math.sqrt(len(values)))
    first = _Split(_whitened(values, correlation)).index
    slope = _slope(values, first)
    level = [value - slope * place for place, value in enumerate(values)]
    split = _Split(_whitened(level, correlation))
    index = split.index
    if not _jumps(values, index, slope) or (p_value := split.p_value()) > STEP_ALPHA:
        return []
    after = [(index + place, chance) for place, chance in _splits(values[index:])]
    return [*_splits(values[:index]), (index, p_value), *after]


def autocorrelation(values: Sequence[float]) -> float:
    """Return the lag-1 autocorrelation, 0 to 0.99, by an estimate robust to steps and outliers.

    Source: Chakar et al. (2017): squared ratio of median differences at lags 2 and 1, minus 1.
    """
    first = median(abs(b - a) for a, b in pairwise(values))
    second = median(abs(b - a) for a, b in zip(values, values[2:], strict=False))
    if first == 0:
        return 0.0
    return min(max((second / first) ** 2 - 1, 0.0), 0.99)


def noise(values: Sequence[float]) -> float:
    """Return a robust standard deviation of values around their level, by adjacent differences."""
    usual = median(abs(b - a) for a, b in pairwise(values))
    return MAD_TO_SIGMA * usual / math.sqrt(2)


def _whitened(values: Sequence[float], correlation: float) -> list[float]:
    """Return a series of the same length with its lag-1 autocorrelation removed."""
    rest = [b - correlation * a for a, b in pairwise(values)]
    return [values[0] * (1 - correlation), *rest]


def _slope(values: Sequence[float], index: int) -> float:
    """Return the median slope per value, over pairs of values on the same side of `index`.

    A step at `index` thus has no effect.
    """
    slopes: list[float] = []
    for start, end in ((0, index), (index, len(values))):
        # Pairs half a side apart: each value once, and the longest distances.
        half = (end - start) // 2
        slopes += [
            (values[a + half] - values[a]) / half for a in range(start, end - half) if half > 1
        ]
    return median(slopes) if slopes else 0.0


class _Split:
    """Split of a series into two sides where the standardized difference of their means is
    largest."""

    def __init__(self, values: Sequence[float]) -> None:
        import numpy as np

        middle = median(values)
        spread = noise(values) or MAD_TO_SIGMA * median(abs(v - middle) for v in values) or 1.0
        self._values = np.clip((np.asarray(values) - middle) / spread, -LIMIT, LIMIT)
        differences = _differences(self._values[None, :])[0]
        self.index = int(np.argmax(differences)) + SHORTEST_SIDE
        self._largest = float(differences.max())

    def p_value(self) -> float:
        """Return the probability of an equally large difference in a series without a step.

        It is estimated from permutations, which destroy autocorrelation. The observed difference is
        therefore divided by the square root of `_inflation()`.
        """
        import numpy as np

        observed = self._largest / math.sqrt(self._inflation()) - 1e-9
        rows = np.tile(self._values, (PERMUTATIONS, 1))
        shuffled = np.random.default_rng(SEED).permuted(rows, axis=1)
        reached = int(np.sum(_differences(shuffled).max(axis=1) >= observed))
        return (1 + reached) / (1 + PERMUTATIONS)

    def _inflation(self) -> float:
        """Return the factor (at least 1) by which autocorrelation raises the variance of means."""
        import numpy as np

        sides = self._values[: self.index], self._values[self.index :]
        rest = np.concatenate([side - side.mean() for side in sides])
        size = len(rest)
        block: int = max(3, round(BLOCKS * size ** (1 / 3)))
        sums = np.concatenate([[0.0], np.cumsum(rest)])
        means = (sums[block:] - sums[:-block]) / block
        variance = float(rest.var())
        if variance < TINY:
            return 1.0
        # Removing two means has taken a part of what blocks share; few blocks say it to within
        # a standard error, and what lies within that is no sign of memory.
        lost, chance = max(1 - 2 * block / size, 0.25), 1 + math.sqrt(2 * block / size)
        squared = float(np.mean(means**2))
        return max(1.0, block * squared / variance / lost / chance)


def _differences(rows: Any) -> Any:
    """Return |mean before - mean after| x sqrt(a b / n) of each row of an array, for each split of
    its n values into a and b."""
    import numpy as np

    size = rows.shape[1]
    before = np.arange(SHORTEST_SIDE, size - SHORTEST_SIDE + 1)
    sums = np.cumsum(rows, axis=1)[:, before - 1]
    total = rows.sum(axis=1, keepdims=True)
    difference = sums / before - (total - sums) / (size - before)
    return np.abs(difference) * np.sqrt(before * (size - before) / size)


def _stands_out(values: Sequence[float], index: int, steps: Collection[int]) -> bool:
    """Return whether the jump at `index` clearly exceeds the jumps at indices far from all `steps`.

    A series that wanders or oscillates has many such jumps. The result is True if there are too few
    other indices.
    """
    inner = range(NEIGHBOURS, len(values) - NEIGHBOURS + 1)
    others = [place for place in inner if all(abs(place - step) >= NEIGHBOURS for step in steps)]
    if len(others) < 2 * NEIGHBOURS:
        return True
    jumps = [_jump(values, place) for place in others]
    drift = median(jumps)
    usual = MAD_TO_SIGMA * median(abs(jump - drift) for jump in jumps)
    return abs(_jump(values, index) - drift) > DEVIATIONS * usual


def _jump(values: Sequence[float], index: int) -> float:
    """Return the median of the values from `index` on minus the median of the values before it,
    within `NEIGHBOURS` values."""
    left, right = values[max(0, index - NEIGHBOURS) : index], values[index : index + NEIGHBOURS]
    return median(right) - median(left)


def _jumps(values: Sequence[float], index: int, slope: float) -> bool:
    """Return whether the level jumps at `index` by a relevant size, beyond noise and drift.

    `slope` is the drift per value of the whole series.
    """
    left, right = values[max(0, index - NEIGHBOURS) : index], values[index : index + NEIGHBOURS]
    apart = (len(left) + len(right)) / 2
    jump = _jump(values, index)
    local = _slope([*left, *right], len(left))
    rests = [jump - drift * apart for drift in (slope, local)]
    sure = DEVIATIONS * noise([*left, *right]) * math.sqrt(1 / len(left) + 1 / len(right))
    least = max(SMALLEST_STEP, sure, abs(jump) / 2)
    return all(rest * jump > 0 and abs(rest) > least for rest in rests)

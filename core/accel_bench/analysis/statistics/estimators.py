"""Estimators behind verdicts: quantiles, t intervals of logarithms, Holm's adjustment."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from statistics import NormalDist, fmean, median, stdev, variance

from accel_bench.documents.base import Frozen

CONFIDENCE = 0.95
"""Confidence of intervals without a verdict."""

MOST_TERMS = 1000
"""Largest number of terms of the continued fraction, enough for a million degrees of freedom."""

MOST_DEGREES = 1e6
"""Degrees of freedom above which Student's t is approximated by the normal distribution, since
differences of `lgamma` lose their digits."""

MOST_LOGARITHM = 700.0
"""Largest logarithm of an interval's end whose exponential is still a float."""

LARGEST_STATISTIC = 1e150
"""Largest statistic whose square is still a float; beyond it the tail probability is 0."""


class Interval(Frozen):
    """Estimate with its interval, in the unit of the values."""

    median: float
    """Estimate of the median: exp(mean of logarithms), for a log-normal distribution."""

    low: float | None
    """Lower end; null with fewer than two values, whose spread is unknown."""

    high: float | None
    """Upper end; null with fewer than two values."""

    confidence: float = CONFIDENCE
    """Confidence of the interval: 0.95 is 95 %."""

    def mapped(self, function: Callable[[float], float]) -> Interval:
        """Return the interval with a monotonic function applied to the estimate and both ends."""
        ends = [function(end) for end in (self.low, self.high) if end is not None]
        low, high = min(ends, default=None), max(ends, default=None)
        update = {"median": function(self.median), "low": low, "high": high}
        return self.model_copy(update=update)


def median_of_known(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are not None; None without such values."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def quantile(values: Sequence[float], fraction: float) -> float:
    """Return the quantile at `fraction` (0 to 1), linear between order statistics.

    This is type 7 of Hyndman and Fan (1996), "Sample quantiles in statistical packages".
    """
    ordered = sorted(values)
    place = fraction * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def geometric_interval(values: Sequence[float]) -> Interval | None:
    """Return the estimated median of positive values with its interval; None without values."""
    return log_interval([math.log(value) for value in values])


def positive_interval(values: Sequence[float]) -> Interval | None:
    """Return the `geometric_interval` of values; None if any value is not positive."""
    return geometric_interval(values) if all(value > 0 for value in values) else None


def log_interval(logarithms: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Return exp of the mean of logarithms with its two-sided t interval; None without values."""
    if not logarithms:
        return None
    half = t_bound(logarithms, (1 + confidence) / 2) if len(logarithms) > 1 else None
    return exp_interval(fmean(logarithms), half, confidence)


def exp_interval(mean: float, half: float | None, confidence: float = CONFIDENCE) -> Interval:
    """Return exp(mean), with ends exp(mean - half) and exp(mean + half) unless `half` is None."""
    low, high = (None, None) if half is None else (_exp(mean - half), _exp(mean + half))
    return Interval(median=math.exp(mean), low=low, high=high, confidence=confidence)


def _exp(logarithm: float) -> float:
    return math.exp(max(-MOST_LOGARITHM, min(logarithm, MOST_LOGARITHM)))


def t_bound(values: Sequence[float], probability: float) -> float:
    """Return the distance of a one-sided t bound from the mean, for at least two values."""
    return t_quantile(len(values) - 1, probability) * standard_error(values)


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of at least two values."""
    return stdev(values) / math.sqrt(len(values))


def one_sided_p(values: Sequence[float]) -> float:
    """Return the one-sided p-value of a mean of 0, by the t test, for at least two values.

    Values without any spread give 0, or 0.5 if they are all 0.
    """
    mean, error = fmean(values), standard_error(values)
    if error == 0:
        return 0.0 if mean else 0.5
    return t_tail(len(values) - 1, abs(mean) / error)


def unpaired_ratio(a: Sequence[float], b: Sequence[float]) -> tuple[Interval | None, float | None]:
    """Return the ratio a / b of unpaired positive values with its 95 % interval, and the two-sided
    p-value of equal means of logarithms, both by Welch's test.

    Source: Welch (1947), "The generalization of Student's problem when several different population
    variances are involved". If `a` or `b` has only one value, the interval's ends and the p-value
    are None; if one is empty, all is None.
    """
    if not a or not b:
        return None, None
    left, right = [math.log(value) for value in a], [math.log(value) for value in b]
    mean, sizes = fmean(left) - fmean(right), (len(left), len(right))
    if min(sizes) < 2:
        return exp_interval(mean, None), None
    parts = [variance(values) / len(values) for values in (left, right)]
    total = sum(parts)
    error = math.sqrt(total)
    if error == 0:
        return exp_interval(mean, 0.0), 0.0 if mean else 1.0
    squares = sum(part**2 / (size - 1) for part, size in zip(parts, sizes, strict=True))
    degrees = total**2 / squares if squares else 1.0
    interval = exp_interval(mean, t_quantile(degrees, 0.975) * error)
    return interval, 2 * t_tail(degrees, abs(mean) / error)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for multiple tests by Holm's method, in the same order.

    Source: Holm (1979), "A simple sequentially rejective multiple test procedure".
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


@cache
def t_quantile(degrees: float, probability: float) -> float:
    """Return a quantile of Student's t distribution.

    Importing scipy for it would take longer than a command that prints a table.
    """
    if probability < 0.5:
        return -t_quantile(degrees, 1 - probability)
    if degrees > MOST_DEGREES:
        degrees, factor = _wallace(degrees)
        normal = NormalDist().inv_cdf(probability) / factor
        return math.sqrt(degrees * math.expm1(normal**2 / degrees))
    # The normal quantile lies below, and the tail is convex: Newton's steps never go too far.
    estimate = NormalDist().inv_cdf(probability)
    step = math.inf
    while step > 1e-15 * estimate:
        step = (t_tail(degrees, estimate) - (1 - probability)) / _t_density(degrees, estimate)
        estimate += step
    return estimate


def t_tail(degrees: float, statistic: float) -> float:
    """Return the tail probability of Student's t above a statistic, by an incomplete beta function
    (Abramowitz and Stegun 26.7.1). Raises ValueError without degrees of freedom."""
    if not degrees > 0:
        raise ValueError(f"Student's t needs more than 0 degrees of freedom, not {degrees}")
    if statistic < 0:
        return 1 - t_tail(degrees, -statistic)
    if statistic > LARGEST_STATISTIC:
        return 0.0
    if degrees > MOST_DEGREES:
        degrees, factor = _wallace(degrees)
        normal = factor * math.sqrt(degrees * math.log1p(statistic**2 / degrees))
        return math.erfc(normal / math.sqrt(2)) / 2
    near, below = degrees / 2, statistic**2 / (degrees + statistic**2)
    density = _t_density(degrees, statistic) * statistic
    if 1 - below < (near + 1) / (near + 2.5):
        return density * _beta_fraction(near, 0.5, 1 - below) / degrees
    return 0.5 - density * _beta_fraction(0.5, near, below)


def _wallace(degrees: float) -> tuple[float, float]:
    """Return `degrees`, at most 1e15, and the factor that makes Student's t a normal deviate.

    Source: Wallace (1959), "Bounds on normal approximations to Student's and the chi-square
    distributions".
    """
    finite = min(degrees, 1e15)  # beyond, a float does not tell it from the normal distribution
    return finite, (8 * finite + 1) / (8 * finite + 3)


def _t_density(degrees: float, statistic: float) -> float:
    half = (degrees + 1) / 2
    scale = math.exp(math.lgamma(half) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    return scale * math.exp(-half * math.log1p(statistic**2 / degrees))


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function, by Lentz's method.

    Source: DLMF 8.17.22.
    """
    above = 1.0
    fraction = below = 1 / (1 - (a + b) * x / (a + 1))
    for m in range(1, MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            above, below = 1 + term / above, 1 / (1 + term * below)
            fraction *= above * below
        if abs(above * below - 1) < 1e-15:
            break
    return fraction

"""The statistics that verdicts rest on: quantiles, t intervals of logarithms, Holm's adjustment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import fmean, stdev

from accel_bench.documents.base import Frozen


class Interval(Frozen):
    """An estimate with its 95 % interval, in the unit of the values that it was made from."""

    median: float
    """The estimate: exp(mean of logarithms), the median of a log-normal distribution."""

    low: float | None
    """Lower end; null with fewer than two values, since one value has no spread."""

    high: float | None
    """Upper end; null with fewer than two values."""


def quantile(values: Sequence[float], share: float) -> float:
    """Return the quantile at `share` (0 to 1), linear between order statistics.

    This is type 7 of Hyndman and Fan (1996), "Sample quantiles in statistical packages".
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def geometric_interval(values: Sequence[float]) -> Interval | None:
    """Estimate the median of positive values, one per process; None when there are none."""
    return log_interval([math.log(value) for value in values])


def log_interval(logarithms: Sequence[float]) -> Interval | None:
    """exp of the mean of logarithms and of its two-sided 95 % t interval; None without any."""
    if not logarithms:
        return None
    mean = fmean(logarithms)
    if len(logarithms) < 2:
        return Interval(median=math.exp(mean), low=None, high=None)
    half = t_quantile(len(logarithms) - 1, 0.975) * standard_error(logarithms)
    return Interval(median=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean of at least two values."""
    return stdev(values) / math.sqrt(len(values))


def paired_log_ratio(baseline: Sequence[float], stack: Sequence[float]) -> list[float]:
    """log(baseline / stack) of each pair: positive where the stack took less time."""
    return [math.log(before / after) for before, after in zip(baseline, stack, strict=True)]


def one_sided_p(values: Sequence[float]) -> float:
    """Probability of a mean at least this far from 0, to the side on which it lies, if it were 0.

    At least two values. Values without any spread give 0, or 0.5 when they are all 0.
    """
    mean, error = fmean(values), standard_error(values)
    if error == 0:
        return 0.0 if mean else 0.5
    return t_tail(len(values) - 1, abs(mean) / error)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for being looked at together; the order is kept.

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
    """Quantile of Student's t distribution with that many degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def t_tail(degrees: int, statistic: float) -> float:
    """Probability that Student's t exceeds a statistic."""
    from scipy.special import stdtr

    return float(stdtr(degrees, -statistic))

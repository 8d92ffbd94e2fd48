"""The statistics that verdicts rest on: quantiles, t intervals of logarithms, Holm's adjustment."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from statistics import fmean, median, stdev

from accel_bench.documents.base import Frozen


class Interval(Frozen):
    """An estimate with its 95 % interval, in the unit of the values that it was made from."""

    median: float
    """The estimate: exp(mean of logarithms), the median of a log-normal distribution."""

    low: float | None
    """Lower end; null with fewer than two values, since one value has no spread."""

    high: float | None
    """Upper end; null with fewer than two values."""

    def mapped(self, function: Callable[[float], float]) -> Interval:
        """Apply a monotonic function to the estimate and both ends."""
        ends = [function(end) for end in (self.low, self.high) if end is not None]
        low, high = min(ends, default=None), max(ends, default=None)
        return Interval(median=function(self.median), low=low, high=high)


def median_of_known(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are known; None without any."""
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
    """Estimate the median of positive values, one per process; None when there are none."""
    return log_interval([math.log(value) for value in values])


def positive_interval(values: Sequence[float]) -> Interval | None:
    """Estimate the median as `geometric_interval` does; None where a value is not positive."""
    return geometric_interval(values) if all(value > 0 for value in values) else None


def log_interval(logarithms: Sequence[float]) -> Interval | None:
    """Return exp of the mean of logarithms with its two-sided 95 % t interval; None without any."""
    if not logarithms:
        return None
    half = t_bound(logarithms, 0.975) if len(logarithms) > 1 else None
    return exp_interval(fmean(logarithms), half)


def exp_interval(mean: float, half: float | None) -> Interval:
    """Return exp of a mean of logarithms, and of its interval of that half width."""
    low, high = (None, None) if half is None else (math.exp(mean - half), math.exp(mean + half))
    return Interval(median=math.exp(mean), low=low, high=high)


def t_bound(values: Sequence[float], probability: float) -> float:
    """Return the distance of a one-sided t bound from the mean of at least two values."""
    return t_quantile(len(values) - 1, probability) * standard_error(values)


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of at least two values."""
    return stdev(values) / math.sqrt(len(values))


def one_sided_p(values: Sequence[float]) -> float:
    """Return the probability of a mean at least this far from 0, on its side, if it were 0.

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


# fmt: off
T_975 = (
    12.706204736174694, 4.302652729749462, 3.1824463052837078, 2.7764451051977934,
    2.5705818356363146, 2.4469118511449786, 2.364624251592784, 2.306004135204166,
    2.262157162798205, 2.228138851986274, 2.200985160091639, 2.1788128296672284,
    2.1603686564627913, 2.144786687917804, 2.131449545559776, 2.1199052992212546,
    2.1098155778333156, 2.1009220402410382, 2.0930240544083087, 2.085963447265864,
    2.0796138447276795, 2.0738730679040254, 2.0686576104190486, 2.0638985616280245,
    2.0595385527532972, 2.0555294386428735, 2.0518305164802846, 2.0484071417952454,
    2.045229642132703, 2.0422724563012378, 2.039513446396408, 2.0369333434601016,
    2.0345152974493383, 2.0322445093177186, 2.030107928250343, 2.0280940009804502,
    2.0261924630291093, 2.0243941639119694, 2.022690920036761, 2.021075390306273,
    2.019540970441376, 2.0180817028184443, 2.016692199227824, 2.0153675744437636,
    2.014103388880846, 2.012895598919429, 2.0117405137297655, 2.010634757624232,
    2.0095752371292392, 2.008559112100761, 2.007583770315836, 2.006646805061688,
    2.0057459953178687, 2.0048792881880564, 2.0040447832891455, 2.003240718847872,
    2.002465459291007, 2.0017174841452356, 2.000995378088267, 2.0002978220142604,
)
# fmt: on
"""97.5 % quantiles of Student's t for 1 to 60 degrees of freedom, as scipy computes them: most
intervals need no other, and scipy's import takes longer than most tables."""


@cache
def t_quantile(degrees: float, probability: float) -> float:
    """Return a quantile of Student's t distribution with that many degrees of freedom."""
    if probability == 0.975 and degrees in range(1, len(T_975) + 1):
        return T_975[int(degrees) - 1]
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def t_tail(degrees: float, statistic: float) -> float:
    """Return the probability that Student's t exceeds a statistic."""
    from scipy.special import stdtr

    return float(stdtr(degrees, -statistic))

"""How far training moved a loss curve, apart from the noise between its batches.

A line is fitted to the losses; its change from the first step to the last is the movement. Batches
differ, so that the curve scatters about the line: the standard error of the slope says how much of
the change that scatter explains. Movement is seen where the 95 % t interval of the change lies
beyond what is allowed; a curve that moved by exactly that is taken for one that moved more in at
most 2.5 % of cases. A movement of `detectable` is seen in 80 % of cases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, linear_regression
from typing import NamedTuple

from accel_bench.analysis.statistics.estimators import t_quantile

MINIMUM_STEPS = 3
"""Steps that a line and the scatter about it need."""

POWER = 0.80
"""How often a movement of `detectable` is seen."""


class Movement(NamedTuple):
    """The change of a loss curve from its first step to its last, relative to its mean."""

    size: float
    """Without its sign; 0 about a mean of 0."""

    at_least: float
    """Lower end of its 95 % interval; 0 where noise alone could have made it."""

    detectable: float
    """How far beyond a tolerance a movement must be to be seen in 80 % of cases."""


def movement(losses: Sequence[float]) -> Movement:
    """Return how far training moved a curve of finite losses; nothing is seen in two steps."""
    if len(losses) < MINIMUM_STEPS:
        return Movement(0.0, 0.0, math.inf)
    steps = range(len(losses))
    slope, start = linear_regression(steps, losses)
    free = len(losses) - 2
    squares = sum(
        (loss - start - slope * step) ** 2 for step, loss in zip(steps, losses, strict=True)
    )
    around = len(losses) * (len(losses) ** 2 - 1) / 12  # squares of the steps about their mean
    error = math.sqrt(squares / free / around)
    scale = steps[-1] / (abs(fmean(losses)) or math.inf)
    surely = t_quantile(free, 0.975)
    return Movement(
        size=abs(slope) * scale,
        at_least=max(0.0, abs(slope) - surely * error) * scale,
        detectable=(surely + t_quantile(free, POWER)) * error * scale,
    )

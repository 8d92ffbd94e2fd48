"""Runs that took far longer than others of their stack: one of them keeps a comparison open.

A round stands out where its ratio lies far from the median of all rounds' ratios: by more than six
robust standard deviations (1.4826 times the median absolute deviation, which the round itself
hardly moves), and by half the time and more. Which of its two runs was slow, their own medians say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median

from accel_bench.analysis.statistics.verdict import MINIMUM_ROUNDS, RoundKey
from accel_bench.documents.base import Frozen

DEVIATIONS = 6.0
"""Robust standard deviations by which a round must stand out."""

SMALLEST_FACTOR = 1.5
"""How many times as long as usual a slow run takes at least."""


class SlowRun(Frozen):
    """A run that took far longer than its stack's others, so that a comparison stays open."""

    stack: str
    """Name of the stack, or of the baseline."""

    session: str
    """Session in which it ran."""

    round: int
    """Its round, from 0; on the screen and in `--repeat-round` it counts from 1."""

    factor: float
    """Its seconds per token over the median of its stack's runs."""


def slow_runs(
    baseline: Mapping[RoundKey, float], stack: Mapping[RoundKey, float], names: tuple[str, str]
) -> list[SlowRun]:
    """Return the runs that make a round stand out, of seconds per token in five rounds or more.

    `names` are those of the baseline and of the stack.
    """
    keys = sorted(set(baseline) & set(stack))
    if len(keys) < MINIMUM_ROUNDS:
        return []
    sides = [{key: math.log(side[key]) for key in keys} for side in (baseline, stack)]
    logs = {key: sides[0][key] - sides[1][key] for key in keys}
    middle = median(logs.values())
    spread = 1.4826 * median(abs(log - middle) for log in logs.values())
    threshold = max(DEVIATIONS * spread, math.log(SMALLEST_FACTOR))
    found = []
    for key, log in logs.items():
        if abs(log - middle) > threshold:
            late = [side[key] - median(side.values()) for side in sides]
            factor = math.exp(max(late))
            if factor >= SMALLEST_FACTOR:  # A run that is fast instead is not repeated.
                name = names[0 if late[0] > late[1] else 1]
                found.append(SlowRun(stack=name, session=key[0], round=key[1], factor=factor))
    return found

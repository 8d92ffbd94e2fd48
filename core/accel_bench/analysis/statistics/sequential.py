"""Judge the same rounds again and again while more are added, with error rates that stay honest.

Two errors are kept small. A stack that is as fast as the other is called a regression in at most
0.5 % of cases, and one that is slower by the floor or more is let pass in at most 5 % of cases.
Both hold however often the rounds are looked at: look number k may spend only 1 / (k (k + 1)) of
each error, and these shares sum to less than 1 over any number of looks (alpha spending with
Bonferroni's inequality, which asks nothing of how looks depend on one another). A look is a session
that added rounds, so that resuming cannot buy a free one. The sizes of the looks are fixed
beforehand, never chosen by what was seen. What no statistic can mend is to start from nothing
again and again until the answer pleases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Literal, NamedTuple, TypeAlias

from accel_bench.analysis.statistics.estimators import t_quantile
from accel_bench.analysis.statistics.verdict import MAXIMUM_ROUNDS, ONE_SIDED_ALPHA

Settled: TypeAlias = Literal["passed", "regression", "inconclusive"]
"""What rounds may settle."""

PASS_ALPHA = 0.05
"""How often a stack may pass that is slower by the floor: over all looks, and at each sweep point.
"""


class Judgement(NamedTuple):
    """What rounds allow one to say about speed."""

    outcome: Settled
    """What is settled."""

    slower_by: float
    """Estimated relative increase of the time per token."""

    at_most: float
    """Its upper bound at the level of the look."""

    rounds_needed: int | None
    """Rounds in all that would settle it; None when settled or hopeless."""


def judge_rounds(logs: Sequence[float], floor: float, looks: int = 1, points: int = 1) -> Judgement:
    """Judge at least five log-ratios, log(other / stack), at their `looks`-th look.

    A regression needs a slow-down that is surely more than 0, by a t bound, and by its estimate
    more than the floor; that is the rule of every comparison. To pass, the slow-down must surely
    be less than the floor. `points` are looked at together, and any of them can raise the alarm.
    """
    slow = -fmean(logs)
    settled, at_most = _settle(slow, stdev(logs), len(logs), floor, looks, points)
    needed = None
    if settled == "inconclusive":
        needed = _rounds_needed(slow, stdev(logs), len(logs), floor, looks, points)
    return Judgement(settled, math.expm1(slow), math.expm1(at_most), needed)


def look_sizes(first: int, most: int) -> list[int]:
    """Rounds in all at each look: doubled from the first to the most, whatever is seen."""
    sizes = [first]
    while sizes[-1] < most:
        sizes.append(min(2 * sizes[-1], most))
    return sizes


def _settle(  # noqa: PLR0913, PLR0917 - the numbers of one test
    slow: float, spread: float, count: int, floor: float, looks: int, points: int
) -> tuple[Settled, float]:
    """What is settled, and the upper bound of the slow-down, both from logarithms."""
    error, share = spread / math.sqrt(count), 1 / (looks * (looks + 1))
    allowed = math.log1p(floor)
    at_most = slow + t_quantile(count - 1, 1 - PASS_ALPHA * share) * error
    surely = t_quantile(count - 1, 1 - ONE_SIDED_ALPHA * share / points) * error
    if slow > max(surely, allowed):
        return "regression", at_most
    return ("passed" if at_most < allowed else "inconclusive"), at_most


def _rounds_needed(  # noqa: PLR0913, PLR0917 - the numbers of one test
    slow: float, spread: float, count: int, floor: float, looks: int, points: int
) -> int | None:
    """The smallest count at which the same mean and spread settle it at the next look."""
    for more in range(count + 1, MAXIMUM_ROUNDS + 1):
        if _settle(slow, spread, more, floor, looks + 1, points)[0] != "inconclusive":
            return more
    return None

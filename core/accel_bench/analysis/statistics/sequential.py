"""Judge the same rounds again and again while more are added, with error rates that stay honest.

Two errors are kept small. A stack that is as fast as the other is called a regression in at most
0.5 % of cases, and one that is slower by the floor or more is let pass in at most 5 % of cases.
Both hold however often the rounds are looked at, by the fractions of `statistics.verdict` (alpha
spending with Bonferroni's inequality, which assumes nothing of how looks depend on one another). A
look is a session that added rounds, so that resuming is no free one. The sizes of the looks are
fixed beforehand, never chosen by results. What no statistic can mend is to start from nothing again
and again until the answer pleases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Literal, NamedTuple, TypeAlias

from accel_bench.analysis.statistics.estimators import Interval, t_quantile
from accel_bench.analysis.statistics.verdict import (
    MAXIMUM_ROUNDS,
    MINIMUM_ROUNDS,
    ONE_SIDED_ALPHA,
    Comparison,
    fraction_of_look,
    judged_interval,
)

Outcome: TypeAlias = Literal["passed", "regression", "inconclusive", "failed", "skipped"]
"""Outcomes of a gate; those of speeds that were compared are the first three."""

GATE_CODES: Mapping[Outcome, int] = {
    "passed": 0,
    "regression": 4,
    "inconclusive": 5,
    "failed": 1,
    "skipped": 3,
}
"""Exit code of the program for each outcome."""

PASS_ALPHA = 0.05
"""How often a stack may pass that is slower by the floor: over all looks, and at each sweep point.
"""


class Judgement(NamedTuple):
    """What rounds show of speed."""

    outcome: Outcome

    ratio: Interval
    """Speed over the other's, with the interval that leaves out 1 if one is surely slower."""

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
    slow, spread, allowed = -fmean(logs), stdev(logs), math.log1p(floor)

    def settle(rounds: int, look: int) -> tuple[Outcome, float]:
        """Return the outcome of so many rounds, and the upper bound of the log slow-down."""
        error, fraction = spread / math.sqrt(rounds), fraction_of_look(look)
        at_most = slow + t_quantile(rounds - 1, 1 - PASS_ALPHA * fraction) * error
        if slow > max(_surely(rounds, look, points) * error, allowed):
            return "regression", at_most
        return ("passed" if at_most < allowed else "inconclusive"), at_most

    outcome, at_most = settle(len(logs), looks)
    needed = None
    if outcome == "inconclusive":
        more = range(len(logs) + 1, MAXIMUM_ROUNDS + 1)
        needed = next((n for n in more if settle(n, looks + 1)[0] != "inconclusive"), None)
    speed = judged_interval(logs, looks, points)
    assert speed is not None
    return Judgement(outcome, speed, math.expm1(slow), math.expm1(at_most), needed)


def judge_comparison(found: Comparison, floor: float) -> Outcome:
    """Judge a comparison by the rules of `judge_rounds`; without a verdict it stays open.

    Slower is what its verdict calls worse, which is adjusted for all stacks that were compared.
    """
    ratio = found.ratio
    if found.rounds < MINIMUM_ROUNDS or found.verdict == "not tested" or not (ratio and ratio.low):
        return "inconclusive"
    speed, allowed = math.log(ratio.median), -math.log1p(floor)
    if found.verdict == "worse" and speed < allowed:
        return "regression"
    level, freedom = 1 - PASS_ALPHA * fraction_of_look(found.looks), found.rounds - 1
    error = (speed - math.log(ratio.low)) / t_quantile(freedom, (1 + ratio.confidence) / 2)
    return "passed" if speed - t_quantile(freedom, level) * error > allowed else "inconclusive"


def is_slower(logs: Sequence[float], floor: float, looks: int, points: int) -> bool:
    """Return whether `judge_rounds` calls at least two log-ratios a regression."""
    error = stdev(logs) / math.sqrt(len(logs))
    return -fmean(logs) > max(_surely(len(logs), looks, points) * error, math.log1p(floor))


def _surely(rounds: int, look: int, points: int) -> float:
    """Return how many standard errors are surely more than 0 at a look."""
    return t_quantile(rounds - 1, 1 - ONE_SIDED_ALPHA * fraction_of_look(look) / points)


def look_sizes(first: int, most: int) -> list[int]:
    """Return the rounds in all at each look: doubled from the first to the most."""
    sizes = [first]
    while sizes[-1] < most:
        sizes.append(min(2 * sizes[-1], most))
    return sizes

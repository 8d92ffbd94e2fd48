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
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from accel_bench.analysis.statistics.estimators import t_quantile
from accel_bench.analysis.statistics.verdict import (
    MAXIMUM_ROUNDS,
    MINIMUM_ROUNDS,
    Comparison,
    fraction_of_look,
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
    """Slow-down that a comparison shows; all but the outcome is None without a verdict."""

    outcome: Outcome

    slower_by: float | None = None
    """Estimated relative increase of the time per token."""

    at_most: float | None = None
    """Its upper bound at the level of the look."""

    rounds_needed: int | None = None
    """Rounds in all that would settle it; None when settled or hopeless."""


def judge_comparison(found: Comparison, floor: float) -> Judgement:
    """Judge a comparison at its look; without a verdict it stays open.

    A regression needs a slow-down that its verdict calls worse, which is adjusted for all that is
    compared together, and that by its estimate is more than the floor. To pass, the slow-down must
    surely be less than the floor.
    """
    ratio = found.ratio
    if found.rounds < MINIMUM_ROUNDS or found.verdict == "not tested" or not (ratio and ratio.low):
        return Judgement("inconclusive")
    slow, allowed = -math.log(ratio.median), math.log1p(floor)
    tail = (1 - ratio.confidence) / 2
    error = (-slow - math.log(ratio.low)) / t_quantile(found.rounds - 1, 1 - tail)
    spread, share = error * math.sqrt(found.rounds), tail / fraction_of_look(found.looks)

    def bound(rounds: int, look: int, error_rate: float) -> float:
        """Return the distance of a one-sided bound from the mean of so many rounds."""
        sure = t_quantile(rounds - 1, 1 - error_rate * fraction_of_look(look))
        return sure * spread / math.sqrt(rounds)

    def settles(rounds: int) -> bool:
        passes, worse = (bound(rounds, found.looks + 1, rate) for rate in (PASS_ALPHA, share))
        return slow + passes < allowed or slow > max(worse, allowed)

    at_most = slow + bound(found.rounds, found.looks, PASS_ALPHA)
    regression = found.verdict == "worse" and slow > allowed
    passed: Outcome = "passed" if at_most < allowed else "inconclusive"
    outcome: Outcome = "regression" if regression else passed
    more = range(found.rounds + 1, MAXIMUM_ROUNDS + 1) if outcome == "inconclusive" else ()
    needed = next(filter(settles, more), None)
    return Judgement(outcome, math.expm1(slow), math.expm1(at_most), needed)


def look_sizes(first: int, most: int) -> list[int]:
    """Return the rounds in all at each look: doubled from the first to the most."""
    sizes = [first]
    while sizes[-1] < most:
        sizes.append(min(2 * sizes[-1], most))
    return sizes

"""Group-sequential test for regressions: repeated verdicts on a growing number of rounds.

Two error rates are bounded over all looks. An equally fast stack is called a regression in at most
0.5 % of cases; a stack slower by the floor or more passes in at most 5 % of cases. The fractions of
`statistics.verdict` divide both among looks (alpha spending with Bonferroni's inequality, for any
dependence of the looks). A look is a session that added rounds, resumed ones included. Sizes of
looks are fixed in advance, never chosen by results. A test that is started anew until it passes is
beyond these bounds.
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
"""Outcomes of a gate; the first three follow from a compared speed."""

GATE_CODES: Mapping[Outcome, int] = {
    "passed": 0,
    "regression": 4,
    "inconclusive": 5,
    "failed": 1,
    "skipped": 3,
}
"""Exit codes of gates by outcome."""

PASS_ALPHA = 0.05
"""Probability that a stack slower by the floor passes, over all looks of a sweep point."""


class Judgement(NamedTuple):
    """Outcome of a gate, with the slow-down and needed rounds, which are None without a verdict."""

    outcome: Outcome

    slower_by: float | None = None
    """Estimated slow-down: relative increase of the time per token."""

    at_most: float | None = None
    """Upper bound of the slow-down at the look's error rate."""

    rounds_needed: int | None = None
    """Total number of rounds that would settle an open outcome; None if too many."""


def judge_comparison(found: Comparison, floor: float) -> Judgement:
    """Return the outcome of the regression test on a comparison; `inconclusive` without a verdict.

    A regression needs a verdict `worse` and an estimated slow-down above the `floor` (0.01 is 1 %).
    To pass, the upper bound of the slow-down must be below the floor.
    """
    ratio = found.ratio
    if found.rounds < MINIMUM_ROUNDS or found.verdict == "not tested" or not (ratio and ratio.low):
        return Judgement("inconclusive")
    slow, allowed = -math.log(ratio.median), math.log1p(floor)
    tail = (1 - ratio.confidence) / 2
    error = (-slow - math.log(ratio.low)) / t_quantile(found.rounds - 1, 1 - tail)
    spread, share = error * math.sqrt(found.rounds), tail / fraction_of_look(found.looks)

    def bound(rounds: int, look: int, error_rate: float) -> float:
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
    """Return the total number of rounds at each look, doubled from the first to the most."""
    sizes = [first]
    while sizes[-1] < most:
        sizes.append(min(2 * sizes[-1], most))
    return sizes

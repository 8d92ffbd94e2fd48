"""An alarm of the gate is one when rounds in fresh processes confirm it on their own.

New rounds of what is as fast confirm an alarm in at most 0.5 % of cases, over all looks at them.
What they do not confirm passes if they show that it does, at the level of looks after the first
ones, and is open otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accel_bench.analysis.schema import PlannedSummary
from accel_bench.analysis.statistics.verdict import ONE_SIDED_ALPHA
from accel_bench.analysis.wording import percent, ratio_interval
from accel_bench.result import Result
from accel_bench_ci.verdict import (
    EXIT_CODES,
    GatePoint,
    GateReport,
    judge_pairs,
    pairs_of,
    worst_outcome,
)

ERROR_RATE = ONE_SIDED_ALPHA
"""How often new rounds of what is as fast confirm an alarm, at most.

The first rounds make it rarer only as far as they are independent of the new ones, which runs on
one machine need not be.
"""


def points_to_confirm(report: GateReport) -> set[str]:
    """Return the ids of the stack's experiments that look slower; a different loss is none."""
    return {
        point.stack_id
        for point in report.points
        if point.outcome == "regression" and not point.not_the_same
    }


def with_confirmation(
    report: GateReport, planned: Sequence[PlannedSummary], fresh: Sequence[Result]
) -> GateReport:
    """Return the report with its slow-downs confirmed, or not, by new rounds of both stacks."""
    concerned = points_to_confirm(report)
    looks = max((one.looks for one in report.points if one.stack_id in concerned), default=0)
    pairs = pairs_of((report.stack, report.against), planned, fresh)
    new = judge_pairs(pairs, report.floor)
    later = judge_pairs(pairs, report.floor, looks_before=looks)
    return with_new_points(report, new, later)


def with_new_points(
    report: GateReport, new: Sequence[GatePoint], later: Sequence[GatePoint]
) -> GateReport:
    """Return the report with its slow-downs confirmed, or not, by points of new rounds alone.

    `later` judges the same rounds as `new`, at the level of looks after those of the report.
    """
    concerned = points_to_confirm(report)
    by_id = {one.stack_id: one for one in new}
    passing = {one.stack_id for one in later if one.outcome == "passed"}
    points = tuple(
        _confirmed(one, by_id, one.stack_id in passing) if one.stack_id in concerned else one
        for one in report.points
    )
    outcome = worst_outcome(points)
    changes = {"points": points, "outcome": outcome, "exit_code": EXIT_CODES[outcome]}
    return report.model_copy(update=changes)


def _confirmed(point: GatePoint, again: Mapping[str, GatePoint], passes: bool) -> GatePoint:
    """Return a point with what the new rounds of it show."""
    new = again[point.stack_id]
    slower = new.outcome == "regression" and not new.not_the_same
    found = ratio_interval(new.ratio) if new.ratio else "no ratio"
    rounds = f"{new.rounds} new rounds in fresh processes"
    if slower:
        rate = f"error rate at most {percent(ERROR_RATE)} by the new rounds alone"
        reason = f"{point.reason}; confirmed by {rounds}: {found}, {rate}"
    elif new.outcome in ("failed", "skipped", "regression"):
        reason = f"{point.reason}; {rounds}: {new.reason}"
    else:
        reason = f"not confirmed by {rounds}: {found}; the first rounds had it that {point.reason}"
    outcome = new.outcome
    if outcome == "passed" and not passes:
        outcome = "inconclusive"
    changes = {
        "outcome": outcome,
        "reason": reason,
        "confirmed": slower,
        "confirmation_rounds": new.rounds,
        "confirmation_ratio": new.ratio,
        "error_rate": ERROR_RATE if slower else None,
        "rounds_needed": new.rounds_needed if outcome == "inconclusive" else None,
        "more_rounds": new.more_rounds if outcome == "inconclusive" else None,
        "seconds": point.seconds + new.seconds,
    }
    return point.model_copy(update=changes)

"""Looks (interim analyses of a sequential test) of the gate: rounds are added until each sweep
point is decided, and then to confirm alarms, which are apparent slow-downs.

An alarm counts only if new rounds in fresh processes confirm it by themselves. New rounds of an
equally fast stack do so in at most 0.5 % of cases, over all looks. A stack with an unconfirmed
alarm passes if the new rounds show that it is not slower, at the significance level of later looks.
Otherwise it is undecided.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from accel_bench.analysis.aggregate import PlannedSummary
from accel_bench.analysis.statistics.sequential import GATE_CODES
from accel_bench.analysis.statistics.verdict import ONE_SIDED_ALPHA
from accel_bench.analysis.wording import percent, ratio_interval
from accel_bench.planning.plan import Plan
from accel_bench.result import Result
from accel_bench.runner.session import Session
from accel_bench.store.database import Store
from accel_bench_ci.verdict import (
    GatePoint,
    GateReport,
    judge_gate,
    judge_pairs,
    pairs_of,
    worst_outcome,
)


class GateRounds(Protocol):
    """Protocol of rounds of two stacks, measured and judged look by look, from look 0 on."""

    def measure(self, look: int, settled: Collection[str]) -> GateReport:
        """Measure the rounds of look number `look`; return the judgement of all rounds so far.

        `settled` are the ids of experiments that are decided and not run again.
        """

    def confirm(self, look: int, alarm: GateReport, unsettled: Collection[str]) -> GateReport:
        """Measure new rounds of a look; return a copy of `alarm`, judged by the new rounds alone.

        `alarm` is the report with apparent slow-downs. `unsettled` are the ids of experiments whose
        slow-down is still to be confirmed.
        """


def settle_gate(rounds: GateRounds, looks: int) -> GateReport:
    """Add rounds until each sweep point is decided, then confirm alarms, and return the report.

    `looks` is the maximum number of interim analyses in each of the two phases, at least 1.
    """
    assert looks > 0
    settled: set[str] = set()
    for look in range(looks):
        alarm = rounds.measure(look, settled)
        settled = {point.stack_id for point in alarm.points} - _open(alarm)
        if not _open(alarm):
            break
    report = alarm
    concerned = unsettled = points_to_confirm(alarm)
    for look in range(looks):
        if not unsettled:
            break
        report = rounds.confirm(look, alarm, unsettled)
        unsettled = concerned & _open(report)
    return report


def _open(report: GateReport) -> set[str]:
    return {point.stack_id for point in report.points if point.outcome == "inconclusive"}


@dataclass
class SessionRounds:
    """Rounds of a gate that are measured in one session per look (interim analysis)."""

    plans: Sequence[Plan]
    """Plans of the looks, with an increasing number of rounds."""

    stack: str
    floor: float
    store: Store
    new_session: Callable[..., Session]

    sessions: list[Session] = field(default_factory=list)
    """Sessions that measured rounds, in order."""

    _fresh: list[Session] = field(default_factory=list)
    """Sessions of new rounds that confirm an alarm."""

    def measure(self, look: int, settled: Collection[str]) -> GateReport:
        """Measure the rounds of look number `look`; return the judgement of all rounds so far.

        `settled` are the ids of experiments that are decided; their sweep points are not run.
        """
        plan = self.plans[look]
        session = self.new_session(continues=tuple(earlier.id for earlier in self.sessions))
        points = points_of_both(plan)
        points -= {
            planned.experiment.point for planned in plan.planned if planned.experiment.id in settled
        }
        session.run_plan(_at_points(plan, points))
        self.sessions.append(session)
        results = session.results(plan)
        return judge_gate(self.stack, plan.baseline, self.floor, plan.summaries, results)

    def confirm(self, look: int, alarm: GateReport, unsettled: Collection[str]) -> GateReport:
        """Measure new rounds of a look; return a copy of `alarm`, judged by the new rounds alone.

        `alarm` is the report of `measure`, `unsettled` the ids of experiments still to be
        confirmed.
        """
        plan = self.plans[look]
        session = self.new_session()
        session.continues, session.resume = tuple(earlier.id for earlier in self._fresh), False
        session.run_plan(_of_experiments(plan, unsettled))
        self.sessions.append(session)
        self._fresh.append(session)
        fresh = [run for earlier in self._fresh for run in self.store.results(session=earlier.id)]
        concerned = _of_experiments(plan, points_to_confirm(alarm))
        return with_confirmation(alarm, concerned.summaries, fresh)


def points_of_both(plan: Plan) -> set[str]:
    """Return the names of the sweep points of a plan at which both stacks run."""
    points = [planned.experiment.point for planned in plan.runnable]
    return {point for point in points if points.count(point) == 2}


def _of_experiments(plan: Plan, ids: Collection[str]) -> Plan:
    """Return a plan restricted to the sweep points of the experiments with the given ids."""
    return _at_points(plan, {p.experiment.point for p in plan.planned if p.experiment.id in ids})


def _at_points(plan: Plan, points: Collection[str]) -> Plan:
    return replace(plan, planned=tuple(p for p in plan.planned if p.experiment.point in points))


ERROR_RATE = ONE_SIDED_ALPHA
"""Maximum probability that new rounds of an equally fast stack confirm an alarm.

The rounds of the alarm itself lower the probability further if they are independent of the new
rounds, but rounds on one machine may be correlated.
"""


def points_to_confirm(report: GateReport) -> set[str]:
    """Return the ids of the stack's experiments that look slower and must be confirmed."""
    return {point.stack_id for point in report.points if point.slower}


def with_confirmation(
    report: GateReport, planned: Sequence[PlannedSummary], fresh: Sequence[Result]
) -> GateReport:
    """Return a copy of a report, with apparent slow-downs judged by the new rounds of both stacks.

    `planned` are both stacks' experiments with slow-downs, and `fresh` their results in new rounds.
    The significance level for passing takes the report's earlier looks into account.
    """
    looks = max((point.looks for point in report.points if point.slower), default=0)
    pairs = pairs_of((report.stack, report.against), planned, fresh)
    return with_new_points(report, judge_pairs(pairs, report.floor, looks))


def with_new_points(report: GateReport, new: Sequence[GatePoint]) -> GateReport:
    """Return a copy of a report, with apparent slow-downs judged by new rounds alone.

    `new` has the judgement of the new rounds for each sweep point with a slow-down.
    """
    by_id = {point.stack_id: point for point in new}
    points = tuple(_confirmed(point, by_id[point.stack_id]) if point.slower else point
                   for point in report.points)  # fmt: skip
    outcome = worst_outcome(points)
    changes = {"points": points, "outcome": outcome, "exit_code": GATE_CODES[outcome]}
    return report.model_copy(update=changes)


def _confirmed(point: GatePoint, new: GatePoint) -> GatePoint:
    """Return a copy of a sweep point, with the judgement `new` of its new rounds."""
    measured = ratio_interval(new.ratio) if new.ratio else "no ratio"
    rounds = f"{new.rounds} new rounds in fresh processes"
    if new.slower:
        rate = f"error rate at most {percent(ERROR_RATE)} by the new rounds alone"
        reason = f"{point.reason}; confirmed by {rounds}: {measured}, {rate}"
    elif new.outcome in ("failed", "skipped", "regression"):
        reason = f"{point.reason}; {rounds}: {new.reason}"
    else:
        reason = (
            f"not confirmed by {rounds}: {measured}; the first rounds had it that {point.reason}"
        )
    changes = {
        "outcome": new.outcome,
        "reason": reason,
        "confirmed": new.slower,
        "confirmation_rounds": new.rounds,
        "confirmation_ratio": new.ratio,
        "error_rate": ERROR_RATE if new.slower else None,
        "rounds_needed": new.rounds_needed,
        "more_rounds": new.more_rounds,
        "seconds": point.seconds + new.seconds,
    }
    return point.model_copy(update=changes)

"""The looks of the gate: more rounds until every point is settled, and new ones for an alarm.

An alarm is one when rounds in fresh processes confirm it on their own. New rounds of what is as
fast confirm an alarm in at most 0.5 % of cases, over all looks at them. What they do not confirm
passes if they show that it does, at the level of looks after the first ones, and is open otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from accel_bench.analysis.aggregate import PlannedSummary
from accel_bench.analysis.statistics.verdict import ONE_SIDED_ALPHA
from accel_bench.analysis.wording import percent, ratio_interval
from accel_bench.planning.plan import Plan
from accel_bench.result import Result
from accel_bench.runner.session import Session
from accel_bench.store.database import Store
from accel_bench_ci.verdict import (
    EXIT_CODES,
    GatePoint,
    GateReport,
    judge_gate,
    judge_pairs,
    pairs_of,
    worst_outcome,
)


class GateRounds(Protocol):
    """Measures rounds of two stacks, and judges them. A look is its number from 0."""

    def measure(self, look: int, settled: Collection[str]) -> GateReport:
        """Add the rounds of a look, but for the experiments that are settled; judge all rounds."""

    def confirm(self, look: int, alarm: GateReport, unsettled: Collection[str]) -> GateReport:
        """Add the rounds of a look at what is to be confirmed; judge it by new rounds alone."""


def settle_gate(rounds: GateRounds, looks: int) -> GateReport:
    """Look until every point is settled, then at new rounds of what looks slower.

    `looks` is the largest number of looks, at least 1, for each of the two.
    """
    assert looks > 0
    settled: set[str] = set()
    for look in range(looks):
        alarm = rounds.measure(look, settled)
        settled = {one.stack_id for one in alarm.points} - _open(alarm)
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
    return {one.stack_id for one in report.points if one.outcome == "inconclusive"}


@dataclass
class SessionRounds:
    """Measures the rounds of each look in a session of its own."""

    plans: Sequence[Plan]
    """The plan of each look; they differ in their number of rounds."""

    stack: str
    floor: float
    store: Store
    new_session: Callable[..., Session]

    sessions: list[Session] = field(default_factory=list)
    """All that ran, in their order."""

    _fresh: list[Session] = field(default_factory=list)
    """Sessions that confirm an alarm."""

    def measure(self, look: int, settled: Collection[str]) -> GateReport:
        """Add the rounds of a look to those before it."""
        plan = self.plans[look]
        session = self.new_session(continues=tuple(one.id for one in self.sessions))
        points = points_of_both(plan)
        points -= {one.experiment.point for one in plan.planned if one.experiment.id in settled}
        session.run_plan(_at_points(plan, points))
        self.sessions.append(session)
        results = session.results(plan)
        return judge_gate(self.stack, plan.baseline, self.floor, plan.summaries, results)

    def confirm(self, look: int, alarm: GateReport, unsettled: Collection[str]) -> GateReport:
        """Add new rounds; those that raised the alarm, and any other, count for nothing here."""
        plan = self.plans[look]
        session = self.new_session()
        session.continues, session.resume = tuple(one.id for one in self._fresh), False
        session.run_plan(_of_experiments(plan, unsettled))
        self.sessions.append(session)
        self._fresh.append(session)
        fresh = [run for one in self._fresh for run in self.store.results(session=one.id)]
        concerned = _of_experiments(plan, points_to_confirm(alarm))
        return with_confirmation(alarm, concerned.summaries, fresh)


def points_of_both(plan: Plan) -> set[str]:
    """Return the sweep points at which both stacks are to run."""
    points = [planned.experiment.point for planned in plan.runnable]
    return {point for point in points if points.count(point) == 2}


def _of_experiments(plan: Plan, ids: Collection[str]) -> Plan:
    """Return the plan with the sweep points of these experiments alone."""
    return _at_points(plan, {p.experiment.point for p in plan.planned if p.experiment.id in ids})


def _at_points(plan: Plan, points: Collection[str]) -> Plan:
    return replace(plan, planned=tuple(p for p in plan.planned if p.experiment.point in points))


ERROR_RATE = ONE_SIDED_ALPHA
"""How often new rounds of what is as fast confirm an alarm, at most.

The first rounds make it rarer only as far as they are independent of the new ones, which runs on
one machine need not be.
"""


def points_to_confirm(report: GateReport) -> set[str]:
    """Return the ids of the stack's experiments that look slower."""
    return {point.stack_id for point in report.points if point.slower}


def with_confirmation(
    report: GateReport, planned: Sequence[PlannedSummary], fresh: Sequence[Result]
) -> GateReport:
    """Return the report with its slow-downs confirmed, or not, by new rounds of both stacks."""
    looks = max((point.looks for point in report.points if point.slower), default=0)
    pairs = pairs_of((report.stack, report.against), planned, fresh)
    return with_new_points(report, judge_pairs(pairs, report.floor, looks))


def with_new_points(report: GateReport, new: Sequence[GatePoint]) -> GateReport:
    """Return the report with its slow-downs confirmed, or not, by points of new rounds alone.

    To pass they are judged at the level of looks after those of the report.
    """
    by_id = {one.stack_id: one for one in new}
    points = tuple(_confirmed(one, by_id[one.stack_id]) if one.slower else one
                   for one in report.points)  # fmt: skip
    outcome = worst_outcome(points)
    changes = {"points": points, "outcome": outcome, "exit_code": EXIT_CODES[outcome]}
    return report.model_copy(update=changes)


def _confirmed(point: GatePoint, new: GatePoint) -> GatePoint:
    """Return a point with what the new rounds of it show."""
    found = ratio_interval(new.ratio) if new.ratio else "no ratio"
    rounds = f"{new.rounds} new rounds in fresh processes"
    if new.slower:
        rate = f"error rate at most {percent(ERROR_RATE)} by the new rounds alone"
        reason = f"{point.reason}; confirmed by {rounds}: {found}, {rate}"
    elif new.outcome in ("failed", "skipped", "regression"):
        reason = f"{point.reason}; {rounds}: {new.reason}"
    else:
        reason = f"not confirmed by {rounds}: {found}; the first rounds had it that {point.reason}"
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

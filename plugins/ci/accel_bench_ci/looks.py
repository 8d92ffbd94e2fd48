"""The looks of the gate: more rounds until every point is settled, and new ones for an alarm."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from accel_bench.planning.plan import Plan
from accel_bench.runner.session import Session
from accel_bench.store.database import Store
from accel_bench_ci.gate_confirmation import points_to_confirm, with_confirmation
from accel_bench_ci.verdict import GateReport, judge_gate


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
    return _confirm(rounds, looks, alarm)


def _confirm(rounds: GateRounds, looks: int, alarm: GateReport) -> GateReport:
    """Look at new rounds of what looks slower until that is confirmed or is not."""
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
    """Those that confirm an alarm."""

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

"""Run the winner of a study beside the baseline, before it is called better."""

from __future__ import annotations

from typing import Any, NamedTuple

from accel_bench.analysis.checks.audit import disowning
from accel_bench.analysis.checks.training_verdict import training_obstacle
from accel_bench.analysis.conclusion import conclusion
from accel_bench.analysis.schema import Summary
from accel_bench.documents.canonical import canonical_json
from accel_bench.planning.plan import Plan
from accel_bench.result import Result
from accel_bench_search.tune_plans import TUNED
from accel_bench_search.tune_report import (
    CheckVerdict,
    Objective,
    TuneCheck,
    TuneTrial,
)
from accel_bench_search.tune_search import TuneSearch
from accel_bench_search.tuning import check_losses, loss_at

VERDICTS: dict[str, CheckVerdict] = {"faster": "better", "slower": "worse"}


class TuneChecker(NamedTuple):
    """Compares a winner with the baseline in fresh, interleaved runs."""

    search: TuneSearch
    rounds: int

    def check(self, best: TuneTrial) -> TuneCheck:
        """Run both in rounds, or with as many seeds where the loss decides.

        What an earlier session of the same check has completed counts, and with more rounds it
        goes on: each session that added some is a look, and all looks share the error.
        """
        plan = self._plan(best)
        study = self.search.study
        key = f"check {canonical_json(best.parameters)}"[:500]
        earlier = study.notes.get(key, [])
        session = self.search.runner.new_session(continues=tuple(earlier))
        study.note(key, [*earlier, session.id])
        session.run_plan(plan)
        results = session.results(plan)
        if self.search.objective.goal == "loss":
            pairs = paired_losses(results, self.search.objective)
            looks = len({run.session for run in results if run.status.completed})
            return check_losses(pairs, self.search.objective.words, session.id, max(looks, 1))
        return check_speed(plan.summarize(results), session.id)

    def _plan(self, best: TuneTrial) -> Plan:
        changes: dict[str, Any] = {"measure.rounds": self.rounds}
        if self.search.objective.goal != "loss":
            return self.search.plans.both(best.parameters, changes)
        runs = [best.run_id, self.search.baseline.run_id]
        changes = {"measure.rounds": 1, "measure.steps": self.search.steps_for(runs)}
        return self.search.plans.both(best.parameters, changes, seeds=self.rounds)


def paired_losses(results: list[Result], objective: Objective) -> list[tuple[float, float]]:
    """Return the losses of (baseline, winner) for each seed with which both have one."""
    found: dict[str, dict[bool, float]] = {}
    for run in results:
        sound = run.status.completed and not disowning(run)
        loss = loss_at(run, objective) if sound else None
        if loss is not None:
            experiment = run.experiment
            found.setdefault(experiment.point, {})[experiment.stack.name == TUNED] = loss
    return [(both[False], both[True]) for both in found.values() if len(both) == 2]


def check_speed(summary: Summary, session: str) -> TuneCheck:
    """Return the check of a winner that was searched by speed."""
    row = next(one for one in summary.experiments if one.stack == TUNED)
    base = next(one for one in summary.experiments if one.stack == summary.baseline)
    keeps_up = row.status.completed and not row.saturated
    if base.saturated and keeps_up and not training_obstacle(row):
        reason = "it answers all requests in time, and the baseline is saturated at this rate"
        return TuneCheck(
            verdict="better", reason=reason, rounds=row.rounds, ratio=None, session=session
        )
    return TuneCheck(
        verdict=VERDICTS.get(row.verdict, "open"),
        reason=conclusion(summary).rstrip("."),
        rounds=row.rounds,
        ratio=row.ratio,
        session=session,
    )

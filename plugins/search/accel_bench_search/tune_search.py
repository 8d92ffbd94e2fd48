"""Run the trials of a study, each of them a stored run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from accel_bench.analysis.learning.curves import training_curve
from accel_bench.analysis.metrics.throughput import run_throughput
from accel_bench.analysis.wording import settings, significant
from accel_bench.documents.base import JsonValue
from accel_bench.errors import AccelBenchError
from accel_bench.planning.plan import Plan
from accel_bench.result import Result
from accel_bench.scenario.models import Scenario
from accel_bench.store.schema import RUNS
from accel_bench_search.study import State, StoredTrial, Study
from accel_bench_search.trial import TrialRunner
from accel_bench_search.tune_plans import TunePlans
from accel_bench_search.tune_report import Objective, TrialOutcome, TuneTrial
from accel_bench_search.tuning import (
    best_of,
    dominated,
    judge_trial,
    loss_at,
    steps_to_reach,
)

MOST_RUNS = 3
"""Runs of one trial: those that end before the objective is read are made again, longer."""

MARGIN = 1.1
"""Part of the steps that are taken beyond those that are expected to do."""

STATES: Mapping[TrialOutcome, State] = {
    "ok": "COMPLETE",
    "infeasible": "PRUNED",
    "out of memory": "PRUNED",
    "not run": "PRUNED",
    "failed": "FAIL",
}


@dataclass
class TuneSearch:
    """The trials of one study."""

    runner: TrialRunner
    plans: TunePlans
    study: Study
    objective: Objective
    own: Mapping[str, JsonValue]
    """The scenario's own values of the keys."""

    notify: Callable[[str], object] = print
    """Takes a line before and after each trial."""

    force: bool = False
    """Run what surely needs more memory than there is."""

    baseline: TuneTrial = field(init=False)
    _baseline: Result = field(init=False)
    _rate: float | None = None
    """Tokens per second of the baseline, by which the length of later runs is chosen."""

    def run_baseline(self) -> TuneTrial:
        """Run the stack as it is."""
        self.notify(f"baseline: {settings(dict(self.own))}")
        run = self._run(self.plans.baseline({}), self.plans.baseline)
        speed = run_throughput(run) if run.status.completed else None
        self._baseline, self._rate = run, speed.tokens_per_second if speed else None
        self.baseline = judge_trial(None, {}, run, run, self.objective)
        return self.baseline

    def search(self, trials: int) -> list[TuneTrial]:
        """Run trials until the study has so many; return all of them."""
        found = [self._stored(one) for one in self.study.trials()]
        while len(found) < trials:
            number, parameters = self.study.ask()
            trial = self._try(number, parameters, found)
            notes = {"outcome": trial.outcome, "reason": trial.reason, "run_id": trial.run_id}
            self.study.tell(number, STATES[trial.outcome], trial.value, notes=notes)
            found.append(trial)
            self.notify(self._progress(trial, found))
        return found

    def steps_for(self, run_ids: list[str]) -> int:
        """Return the most steps that any of these runs measured."""
        runs = self.runner.store.results(RUNS.c.run_id.in_(run_ids))
        return max(run.experiment.scenario.measure.steps for run in runs)

    def _try(
        self, number: int, parameters: dict[str, JsonValue], others: list[TuneTrial]
    ) -> TuneTrial:
        def not_run(reason: str) -> TuneTrial:
            return TuneTrial(number=number, parameters=parameters, outcome="not run", reason=reason)

        self.notify(f"trial {number}: {settings(parameters)}")
        if parameters == self.own:
            run = self._baseline
        elif smaller := dominated(parameters, others):
            return not_run(f"trial {smaller.number} ran out of memory with no more than this")
        else:
            try:
                plan = self.plans.trial(parameters, {})
            except AccelBenchError as error:
                return not_run(str(error))
            need = plan.single.need
            if need is not None and not need.fits and not self.force:
                return not_run(f"it needs {need.describe()}, which is more than there is")
            run = self._run(plan, lambda changes: self.plans.trial(parameters, changes))
        return judge_trial(number, parameters, run, self._baseline, self.objective)

    def _run(self, plan: Plan, replan: Callable[[Mapping[str, Any]], Plan]) -> Result:
        """Run an experiment for long enough that the objective can be read."""
        steps = self._steps(plan.single.experiment.scenario)
        for _ in range(MOST_RUNS):
            longer = replan({"measure.steps": steps}) if steps else plan
            run = self.runner.run(longer).result
            curve = training_curve(run) if run.status.completed else []
            if self.objective.goal != "loss" or not curve:
                break
            if loss_at(run, self.objective) is not None:
                break
            steps = steps_to_reach(curve, self.objective)
        return run

    def _steps(self, scenario: Scenario) -> int | None:
        """Return the steps that should do; None for those of the scenario."""
        tokens, seconds = self.objective.amount, self.objective.seconds
        if seconds is not None:
            tokens = seconds * self._rate if self._rate else None
        if tokens is None:
            return None
        each = scenario.train.global_batch_size * scenario.data.sequence_length
        return max(1, math.ceil(MARGIN * tokens / each))

    def _stored(self, trial: StoredTrial) -> TuneTrial:
        """Return a trial of an earlier session, judged anew by its stored run."""
        run_id = trial.notes.get("run_id")
        runs = self.runner.store.results(RUNS.c.run_id == run_id) if run_id else []
        if runs:
            return judge_trial(
                trial.number, trial.parameters, runs[0], self._baseline, self.objective
            )
        return TuneTrial(
            number=trial.number,
            parameters=trial.parameters,
            outcome=trial.notes.get("outcome", "failed"),
            reason=trial.notes.get("reason", ""),
        )

    def _progress(self, trial: TuneTrial, found: list[TuneTrial]) -> str:
        best = best_of(found, self.objective)
        so_far = f"; best so far: trial {best.number}" if best else ""
        value = significant(trial.value, 4) if trial.value is not None else trial.reason
        return f"trial {trial.number}: {trial.outcome} ({value}){so_far}"

"""A study from its plans to the check of its winner: each trial is a stored run."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from accel_bench.analysis.checks.audit import disowning
from accel_bench.analysis.checks.training_verdict import training_obstacle
from accel_bench.analysis.conclusion import conclusion
from accel_bench.analysis.learning.curves import training_curve
from accel_bench.analysis.metrics.throughput import run_throughput
from accel_bench.analysis.schema import Summary
from accel_bench.analysis.wording import settings, significant
from accel_bench.documents.base import JsonValue
from accel_bench.documents.canonical import canonical_json
from accel_bench.errors import AccelBenchError, ScenarioError, did_you_mean
from accel_bench.planning.plan import Plan, PlanRequest
from accel_bench.result import Result
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.models import Scenario
from accel_bench.store.schema import RUNS
from accel_bench_search.study import State, StoredTrial, Study
from accel_bench_search.trial import TrialRunner
from accel_bench_search.tune_report import (
    Objective,
    TrialOutcome,
    TuneCheck,
    TuneTrial,
)
from accel_bench_search.tuning import (
    VERDICTS,
    best_of,
    check_losses,
    dominated,
    judge_trial,
    loss_at,
    steps_to_reach,
)

TUNED = "tuned"
"""Name of the stack that has the values of a trial."""


@dataclass(frozen=True)
class TunePlans:
    """Makes the plans; the values are settings of a stack of their own."""

    draft: Draft
    """The scenario with the changes of the command line."""

    stack: str
    request: PlanRequest
    plan: Callable[[Draft, PlanRequest], Plan]

    def baseline(self, changes: Mapping[str, Any]) -> Plan:
        """Return the plan of the stack as it is, with other values of dotted keys."""
        return self._one(self.draft, self.stack, changes)

    def trial(self, parameters: Mapping[str, JsonValue], changes: Mapping[str, Any]) -> Plan:
        """Return the plan of the stack with the values of a trial."""
        return self._one(self._with_tuned(parameters), TUNED, changes)

    def both(
        self, parameters: Mapping[str, JsonValue], changes: Mapping[str, Any], seeds: int = 0
    ) -> Plan:
        """Return the plan of both, interleaved; with `seeds`, once for each."""
        overrides = (("baseline", self.stack), *changes.items())
        request = replace(
            self.request, only=(TUNED,), no_baseline=False, seeds=seeds, overrides=overrides
        )
        return self.plan(self._with_tuned(parameters), request)

    def _one(self, draft: Draft, stack: str, changes: Mapping[str, Any]) -> Plan:
        overrides = tuple({"measure.rounds": 1, **changes}.items())
        request = replace(self.request, only=(stack,), no_baseline=True, overrides=overrides)
        return self.plan(draft, request)

    def _with_tuned(self, parameters: Mapping[str, JsonValue]) -> Draft:
        draft = copy.deepcopy(self.draft)
        stacks = draft.data.setdefault("stacks", {"baseline": {"use": []}})
        if self.stack not in stacks:
            hint = did_you_mean(self.stack, stacks)
            raise ScenarioError(f"the file has no stack {self.stack!r} to tune{hint}")
        if TUNED in stacks:
            raise ScenarioError(f"tune makes a stack {TUNED!r}, and the file has one; rename it")
        stacks[TUNED] = copy.deepcopy(stacks[self.stack])
        own = f"stacks.{self.stack}."
        for key, value in parameters.items():
            if key.startswith(own):
                draft.set(f"stacks.{TUNED}.{key.removeprefix(own)}", value, f"--vary {key}")
            else:
                stacks[TUNED].setdefault("set", {})[key] = value
                draft.places["stacks", TUNED, "set", key] = f"--vary {key}"
        return draft


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

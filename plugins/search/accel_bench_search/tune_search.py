"""Search of `tune`: baseline, trials, and the winner's check, each a stored run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from accel_bench.analysis.checks.audit import audit_failures
from accel_bench.analysis.checks.training_verdict import training_obstacle
from accel_bench.analysis.conclusion import conclusion
from accel_bench.analysis.learning.curves import training_curve
from accel_bench.analysis.quantity import SPEED
from accel_bench.analysis.schema import Summary
from accel_bench.analysis.wording import settings
from accel_bench.cli.output import print_aside
from accel_bench.documents.base import JsonValue
from accel_bench.documents.canonical import canonical_json, digest
from accel_bench.errors import AccelBenchError
from accel_bench.planning.plan import Plan
from accel_bench.result import Result
from accel_bench.scenario.draft import look_up
from accel_bench.scenario.experiment import Experiment
from accel_bench.scenario.models import Scenario
from accel_bench.store.schema import RUNS
from accel_bench_search.study import CUT_OFF, Axis, State, Study
from accel_bench_search.trial import TUNED, StackPlans, TrialRunner
from accel_bench_search.trial_judgement import (
    beats,
    best_of,
    check_losses,
    dominated,
    judge_trial,
    loss_at,
    steps_to_reach,
)
from accel_bench_search.tune_report import (
    Objective,
    TrialOutcome,
    TuneCheck,
    TuneReport,
    TuneTrial,
)

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


class TuneTask(NamedTuple):
    """Inputs of a search: axes, objective, the planner of the stack, and its experiment."""

    axes: Sequence[Axis]
    objective: Objective
    plans: StackPlans
    experiment: Experiment
    """Experiment of the stack in the scenario."""

    @property
    def own(self) -> dict[str, JsonValue]:
        """The scenario's own values of the tuned keys; keys without a value are left out."""
        scenario = self.experiment.scenario.model_dump(mode="json")
        pairs = ((axis.key, look_up(scenario, axis.key)) for axis in self.axes)
        return {key: value for key, (is_set, value) in pairs if is_set}

    def study_name(self, seed: int) -> str:
        """Return the study's name, which depends on experiment, objective, axes and seed."""
        content = [self.experiment.id, [list(axis) for axis in self.axes], seed]
        task = digest({"task": content, "objective": self.objective.model_dump(mode="json")})
        return f"{self.experiment.scenario.name}/{self.plans.stack}/{task}"


MOST_RUNS = 3
"""Maximum number of runs of one trial; each is longer, until the objective can be read."""

MARGIN = 1.1
"""Factor by which the estimated number of steps is increased for safety."""

STATES: Mapping[TrialOutcome, State] = {
    "ok": "COMPLETE",
    "infeasible": "PRUNED",
    "out of memory": "PRUNED",
    "not run": "PRUNED",
    "failed": "FAIL",
}


@dataclass
class TuneSearch:
    """Search over the trials of one study."""

    runner: TrialRunner
    study: Study
    task: TuneTask
    quiet: bool = False
    force: bool = False
    """True to run values whose lower memory estimate exceeds the device."""

    _baseline: Result = field(init=False)
    _rate: float | None = None
    """Tokens per second of the baseline, which determine the number of steps of later runs."""

    def notify(self, line: str) -> None:
        """Print a line of progress, unless the search is quiet."""
        if not self.quiet:
            print_aside(line)

    def report(self, trials: int, check_rounds: int) -> TuneReport:
        """Run the baseline, the trials and the winner's check, and return the report on them.

        Trials are run until the study has `trials` of them. `check_rounds` is the number of rounds,
        or seeds, in the check.
        """
        task = self.task
        baseline = self._run_baseline()
        tried = self._search(trials)
        best = best_of(tried, task.objective)
        check = None
        if best is not None and beats(best, baseline, task.objective):
            self.notify(f"trial {best.number} is run again beside the baseline")
            check = self._check(best, baseline, check_rounds)
        return TuneReport(
            scenario=task.experiment.scenario.name,
            stack=task.plans.stack,
            stack_sets=tuple(task.experiment.stack.settings),
            study=self.study.optuna.study_name,
            objective=task.objective,
            baseline=baseline,
            trials=tuple(tried),
            best=best,
            check=check,
        )

    def _run_baseline(self) -> TuneTrial:
        """Run the unchanged stack and return it as a trial."""
        self.notify(f"baseline: {settings(self.task.own)}")
        plans = self.task.plans
        self._baseline = self._run(plans.of_stack({}), plans.of_stack)
        baseline = self._judged(None, {}, self._baseline)
        self._rate = baseline.tokens_per_second
        return baseline

    def _judged(
        self, number: int | None, parameters: dict[str, JsonValue], run: Result
    ) -> TuneTrial:
        return judge_trial(number, parameters, run, self._baseline, self.task.objective)

    def _search(self, trials: int) -> list[TuneTrial]:
        """Run trials until the study has `trials` of them; return all."""
        tried = [self._stored(past) for past in self.study.trials()]
        while len(tried) < trials:
            asked = self.study.ask()
            trial = self._try(asked.number, dict(asked.params), tried)
            notes = {"outcome": trial.outcome, "reason": trial.reason, "run_id": trial.run_id}
            self.study.tell(asked, STATES[trial.outcome], trial.value, notes)
            tried.append(trial)
            self.notify(self._progress(trial, tried))
        return tried

    def _try(
        self, number: int, parameters: dict[str, JsonValue], others: list[TuneTrial]
    ) -> TuneTrial:
        def not_run(reason: str) -> TuneTrial:
            return TuneTrial(number=number, parameters=parameters, outcome="not run", reason=reason)

        self.notify(f"trial {number}: {settings(parameters)}")
        if parameters == self.task.own:
            run = self._baseline
        elif smaller := dominated(parameters, others):
            return not_run(f"trial {smaller.number} ran out of memory with no more than this")
        else:
            try:
                plan = self.task.plans.trial(parameters, {})
            except AccelBenchError as error:
                return not_run(str(error))
            need = plan.single.need
            if need is not None and not need.fits and not self.force:
                return not_run(f"it needs {need.describe()}, which is more than there is")
            run = self._run(plan, lambda changes: self.task.plans.trial(parameters, changes))
        return self._judged(number, parameters, run)

    def _run(self, plan: Plan, replan: Callable[[Mapping[str, Any]], Plan]) -> Result:
        """Run a plan's experiment, and repeat it with more steps until the objective can be read.

        Returns the last result. `replan` returns the plan for changed scenario settings.
        """
        objective = self.task.objective
        steps = self._steps(plan.single.experiment.scenario)
        for _ in range(MOST_RUNS):
            longer = replan({"measure.steps": steps}) if steps else plan
            run, _ = self.runner.run(longer)
            curve = training_curve(run) if run.status.completed else []
            if objective.goal != "loss" or not curve or loss_at(run, objective) is not None:
                break
            steps = steps_to_reach(curve, objective)
        return run

    def _steps(self, scenario: Scenario) -> int | None:
        """Return the number of steps in which the objective's budget is used; None if unknown."""
        tokens, seconds = self.task.objective.amount, self.task.objective.seconds
        if seconds is not None:
            tokens = seconds * self._rate if self._rate else None
        if tokens is None:
            return None
        each = scenario.train.global_batch_size * scenario.data.sequence_length
        return max(1, math.ceil(MARGIN * tokens / each))

    def _stored(self, trial: FrozenTrial) -> TuneTrial:
        """Return a trial of an earlier session, judged again by its stored run."""
        notes = trial.user_attrs
        run_id = notes.get("run_id")
        runs = self.runner.store.results(RUNS.c.run_id == run_id) if run_id else []
        if runs:
            return self._judged(trial.number, dict(trial.params), runs[0])
        return TuneTrial(
            number=trial.number,
            parameters=dict(trial.params),
            outcome=notes.get("outcome", "failed"),
            reason=notes.get("reason", CUT_OFF),
        )

    def _progress(self, trial: TuneTrial, found: list[TuneTrial]) -> str:
        best = best_of(found, self.task.objective)
        so_far = f"; best so far: trial {best.number}" if best else ""
        value = trial.reason if trial.value is None else self.task.objective.text(trial.value)
        return f"trial {trial.number}: {trial.outcome} ({value}){so_far}"

    def _check(self, best: TuneTrial, baseline: TuneTrial, rounds: int) -> TuneCheck:
        """Compare winner and baseline by new interleaved rounds or, for a loss, by several seeds.

        Earlier sessions of the same check count, and more rounds extend it. Each session that added
        rounds is a look (an interim analysis); all looks share the error rate.
        """
        objective, study = self.task.objective, self.study.optuna
        changes: dict[str, Any] = {"measure.rounds": rounds, "measure.compare": SPEED}
        seeds = 0
        if objective.goal == "loss":
            runs = self.runner.store.results(RUNS.c.run_id.in_([best.run_id, baseline.run_id]))
            steps = max(run.experiment.scenario.measure.steps for run in runs)
            changes, seeds = {"measure.rounds": 1, "measure.steps": steps}, rounds
        plan = self.task.plans.both(best.parameters, changes, seeds)
        key = f"check {canonical_json(best.parameters)}"[:500]
        earlier = study.user_attrs.get(key, [])
        session = self.runner.new_session(continues=tuple(earlier))
        study.set_user_attr(key, [*earlier, session.id])
        session.run_plan(plan)
        results = session.results(plan)
        if objective.goal == "loss":
            pairs = paired_losses(results, objective)
            looks = len({run.session for run in results if run.status.completed})
            return check_losses(pairs, objective.words, session.id, max(looks, 1))
        return check_speed(plan.summarize(results), session.id)


def paired_losses(results: list[Result], objective: Objective) -> list[tuple[float, float]]:
    """Return a pair of losses (baseline, winner) for each seed for which both are known."""
    losses: dict[str, dict[bool, float]] = {}
    for run in results:
        sound = run.status.completed and not audit_failures(run)
        loss = loss_at(run, objective) if sound else None
        if loss is not None:
            experiment = run.experiment
            losses.setdefault(experiment.point, {})[experiment.stack.name == TUNED] = loss
    return [(both[False], both[True]) for both in losses.values() if len(both) == 2]


def check_speed(summary: Summary, session: str) -> TuneCheck:
    """Return the check of a winner's speed against the baseline's, by the summary of both.

    `session` is the id of the session that ran them.
    """
    row = next(experiment for experiment in summary.experiments if experiment.stack == TUNED)
    base = next(
        experiment for experiment in summary.experiments if experiment.stack == summary.baseline
    )
    keeps_up = row.status.completed and not row.saturated
    if base.saturated and keeps_up and not training_obstacle(row):
        reason = "it answers all requests in time, and the baseline is saturated at this rate"
        return TuneCheck(rounds=row.rounds, verdict="better", reason=reason, session=session)
    reason = conclusion(summary).rstrip(".")
    return TuneCheck(**dict(row.speed), reason=reason, session=session)

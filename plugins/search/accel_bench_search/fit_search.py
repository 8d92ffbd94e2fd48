"""Find the largest value of a key that fits in memory, by real runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from accel_bench.analysis.wording import size
from accel_bench.errors import ScenarioError
from accel_bench.planning.plan import Plan, PlanRequest
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.layers import AXES, look_up
from accel_bench.scenario.models import Scenario
from accel_bench_search.fitting import (
    FitPoint,
    FitReport,
    SearchRange,
    fit_point,
    fit_report,
    next_value,
)
from accel_bench_search.trial import TrialRunner

MakePlan = Callable[[Mapping[str, Any]], Plan]
"""Plans the stack with further values of dotted keys; None takes a key back."""

MICRO_BATCH, TOTAL = "train.micro_batch_size", "train.global_batch_size"


@dataclass(frozen=True)
class FitSearch:
    """The search over one key of one stack."""

    runner: TrialRunner
    make_plan: MakePlan
    scenario: str
    stack: str
    key: str
    range: SearchRange
    rounds: int = 1
    """Rounds in which the largest value that fits is measured."""

    force: bool = False
    """Run what surely needs more memory than there is."""

    notify: Callable[[str], object] = print
    """Takes a line before each value."""

    def search(self) -> FitReport:
        """Try values until the answer is known; each run is stored when it has ended."""
        points: list[FitPoint] = []
        measured: set[int] = set()
        while True:
            while (value := next_value(points, self.range)) is not None:
                points.append(self._try(value))
            report = self._report(points)
            best = report.largest
            if best is None or report.failed or self.rounds == 1 or best.value in measured:
                return report
            # One that runs out of memory in a later round leaves a gap to search.
            measured.add(best.value)
            points[points.index(best)] = self._measure(best)

    def _report(self, points: list[FitPoint]) -> FitReport:
        return fit_report(self.scenario, self.stack, self.key, self.range, points)

    def _try(self, value: int) -> FitPoint:
        self.notify(f"{self.key} = {value:,}")
        plan = self.make_plan({self.key: value})
        planned = plan.single
        check_value(planned.experiment.scenario, self.key, value)
        need = planned.need
        if need is not None and not need.fits and not self.force:
            has = size(need.available_bytes or 0)
            reason = f"it needs {need.describe()}, and there are {has} (not run; --force runs it)"
            return FitPoint(value=value, outcome="does not fit", reason=reason)
        trial = self.runner.run(plan)
        return fit_point(value, [trial.result], trial.stored)

    def _measure(self, point: FitPoint) -> FitPoint:
        """Return a value that fits with the speed of all its rounds."""
        plan = self.make_plan({self.key: point.value, "measure.rounds": self.rounds})
        session = self.runner.new_session(resume=True)
        session.run_plan(plan)
        runs = self.runner.store.results(experiment_ids=[plan.single.experiment.id])
        first = next(n for n, run in enumerate(runs) if run.run_id == point.run_id)
        # What ran out of memory before the run that fits was outdone by it.
        counted = [
            run
            for n, run in enumerate(runs)
            if run.session == session.id
            or (self.runner.counts(run) and (run.status.completed or n >= first))
        ]
        return fit_point(point.value, counted, point.stored)


def check_value(scenario: Scenario, key: str, value: Any) -> None:
    """Raise ScenarioError where a stack sets the key itself, so that the value has no effect."""
    found, actual = look_up(scenario.model_dump(), key)
    if found and actual != value:
        raise ScenarioError(
            f"{key}={value!r} has no effect: the stack sets it to {actual!r}; choose another "
            "--stack, or another key"
        )


def start_of(scenario: Scenario, key: str) -> int:
    """Return the scenario's own value of a key, where a search begins. Raises ScenarioError."""
    found, value = look_up(scenario.model_dump(), key)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    what = f"is {value!r} here" if found and value is not None else "has no value here"
    raise ScenarioError(
        f"--vary {key}: it {what}, and a search needs a whole number above 0 to begin with; give "
        "one with --from, or name a key such as train.micro_batch_size or data.sequence_length"
    )


def first_swept(draft: Draft, key: str) -> dict[str, Any]:
    """Return the first value over which the scenario sweeps a key; a search takes its place."""
    axes = (draft.data.get(axis) or {} for axis in AXES)
    swept = next((axis[key] for axis in axes if isinstance(axis, dict) and key in axis), None)
    return {key: swept[0]} if isinstance(swept, list) and swept else {}


def freed(
    request: PlanRequest, draft: Draft, key: str, scenario: Scenario
) -> Iterator[tuple[str, Any]]:
    """Yield changes without which not every value of the key would be a scenario.

    A global batch that is given is a multiple of few micro-batches: their number is kept in its
    place.
    """
    given = dict(request.overrides).get(TOTAL, draft.get(TOTAL))
    if key == MICRO_BATCH and given is not None:
        yield TOTAL, None
        yield "train.gradient_accumulation", scenario.train.gradient_accumulation

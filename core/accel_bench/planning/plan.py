"""Plan the experiments: those to run with their ids, those to skip with their reasons."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from accel_bench.analysis.aggregate import BY_THE_USER, PlannedSummary, StopReason
from accel_bench.analysis.schema import Summary
from accel_bench.analysis.sections import GROUP, KIND
from accel_bench.analysis.statistics.verdict import MINIMUM_ROUNDS
from accel_bench.analysis.summary import summarize
from accel_bench.analysis.wording import count, join_names
from accel_bench.catalog.hub import hub_notices
from accel_bench.documents.canonical import canonical_json, digest
from accel_bench.documents.redaction import Redactor
from accel_bench.errors import PluginError, ScenarioError, StoreError
from accel_bench.machine.info import Machine
from accel_bench.machine.scheduling import ended_children
from accel_bench.planning.activation import activate_points, make_trackers
from accel_bench.planning.defaults import add_what_plugins_need
from accel_bench.planning.environments import Environment, environment_facts, find_environments
from accel_bench.planning.limits import (
    MemoryNeed,
    memory_need,
    refuse_needs,
    refuse_oversubscription,
)
from accel_bench.planning.request import (
    PlanRequest,
    chosen_points,
    resolve_request,
    with_chosen_stacks,
)
from accel_bench.planning.resolve import ResolvedFile
from accel_bench.plugins.active import ActivePlugins
from accel_bench.plugins.constraints import unmet_constraints
from accel_bench.plugins.doors import find_entry
from accel_bench.plugins.interpreter import Interpreter
from accel_bench.plugins.loading import restored_environment
from accel_bench.plugins.manager import try_in_copy
from accel_bench.plugins.registry import missing_extras
from accel_bench.result import Result
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.experiment import Experiment, identity_of
from accel_bench.scenario.models import ScenarioFile
from accel_bench.scenario.sweep import EXCLUDED, STAND_INS, Point, at, is_excluded
from accel_bench.store.database import Store

__all__ = ["Plan", "PlanRequest", "Planned", "make_plan", "scenario_of"]


@dataclass(frozen=True)
class Planned:
    """One experiment of the plan."""

    experiment: Experiment
    active: ActivePlugins

    skipped: tuple[str, ...] = ()
    """Why it is not run; empty when it is run."""

    need: MemoryNeed | None = None
    """Its memory at least; null where that is not known."""

    environment: Environment | None = None
    """The Python environment that it runs in; null for that of this program."""

    @property
    def interpreter(self) -> Interpreter | None:
        """The Python of that environment."""
        return self.environment.interpreter if self.environment else None

    @property
    def command(self) -> tuple[str, ...]:
        """Command of that Python; empty for the one of this program."""
        return self.interpreter.command if self.interpreter else ()

    def machine(self, machine: Machine) -> Machine:
        """Return this machine with the versions that it runs with."""
        return self.interpreter.on(machine) if self.interpreter else machine


@dataclass(frozen=True)
class Plan:
    """All experiments of one scenario, in order."""

    file: ScenarioFile
    """The scenario as it was written, with the command line's changes."""

    baseline: str
    """The stack that the others are compared with."""

    planned: tuple[Planned, ...]
    """Sweep points outermost, within each the stacks in written order."""

    request: PlanRequest

    notices: tuple[str, ...] = ()
    """What was added to the work because a plugin needs it, and trackers that are left out."""

    trackers: ActivePlugins | None = None
    """Plugins that log its runs beside the store; null where there is no tracker."""

    open_sizes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Keys that stand for `auto`, by the sweep points where they are not worked out."""

    look_rounds: int = 0
    """Rounds in all at a further look at open verdicts; 0 at the first."""

    @property
    def summaries(self) -> list[PlannedSummary]:
        """Return the plan as the analysis needs it, without secrets."""
        return [
            Redactor.of_this_process(planned.experiment.scenario.environment).redact_model(
                PlannedSummary(experiment=planned.experiment, skipped=planned.skipped)
            )
            for planned in self.planned
        ]

    def summarize(self, results: Sequence[Result], stopped: StopReason = BY_THE_USER) -> Summary:
        """Return the comparison of the stacks; `stopped` is why later runs are missing."""
        return summarize(
            self.file.name,
            self.baseline,
            self.summaries,
            results,
            self.rounds,
            stopped=stopped,
            reference=self.request.reference_point,
            race=self.request.race,
            sections=self.request.sections,
        )

    @property
    def runnable(self) -> list[Planned]:
        """Return the experiments that are to run."""
        return [planned for planned in self.planned if not planned.skipped]

    @property
    def single(self) -> Planned:
        """Return the only experiment. Raises ScenarioError where there are several, or none."""
        if self.nothing:
            raise ScenarioError(self.nothing)
        if len(self.planned) > 1:
            swept = ", ".join({key: None for one in self.planned for key in one.experiment.sweep})
            raise ScenarioError(
                f"scenario {self.file.name!r} sweeps over {swept}, and one point is searched at a "
                "time; choose it with --set KEY=VALUE"
            )
        return self.planned[0]

    @property
    def rounds(self) -> int:
        """Return the number of rounds; of `auto` those of all stacks, which more may follow."""
        rounds = self.file.measure.rounds
        return (self.look_rounds or MINIMUM_ROUNDS) if rounds == "auto" else rounds

    @property
    def adds_rounds(self) -> bool:
        """True if the number of rounds is `auto`: more may follow while a verdict is open."""
        return self.file.measure.rounds == "auto"

    @property
    def runs(self) -> int:
        """Return the number of runs in all rounds."""
        return len(self.runnable) * self.rounds

    def of_open(self, summary: Summary, rounds: int) -> Plan:
        """Return so many rounds of the stacks whose verdict is open, each beside its baseline.

        Stacks that have as many rounds are left out.
        """
        rows = list(zip(self.planned, summary.experiments, strict=True))
        left = [one for one, row in rows if row.verdict == "inconclusive" and row.rounds < rounds]
        if not left:
            return replace(self, planned=())
        points = {one.experiment.point for one in left}
        beside = (one for one in self.runnable if one.experiment.stack.name == self.baseline)
        kept = {id(one) for one in (*left, *beside) if one.experiment.point in points}
        chosen = tuple(one for one in self.planned if id(one) in kept)
        names = join_names([one.experiment.stack.name for one in left], most=5)
        notice = f"the verdict is open for {names}: {count(rounds, 'round')} in all"
        return replace(self, planned=chosen, notices=(notice,), look_rounds=rounds)

    def seconds(self, store: Store | None) -> float | None:
        """Return the seconds of all rounds, each run as long as the median of those stored.

        None where an experiment has none, since nothing else says how fast this machine is.
        """
        found: dict[str, list[float]] = {one.experiment.id: [] for one in self.runnable}
        with suppress(StoreError):
            for result in store.results(experiment_ids=[*found]) if store else ():
                if result.status.completed:
                    found[result.experiment.id].append(result.seconds)
        if not all(found.values()):
            return None
        one_round = sum(median(found[one.experiment.id]) for one in self.runnable)
        return one_round * self.rounds

    @property
    def nothing(self) -> str:
        """Return why nothing can run here; empty when something can."""
        reasons = {reason for planned in self.planned for reason in planned.skipped}
        return "" if self.runnable else f"nothing can run here: {'; '.join(sorted(reasons))}"


@ended_children()
@restored_environment()
def make_plan(draft: Draft, machine: Machine, request: PlanRequest) -> Plan:
    """Return the plan. Nothing is started, and nothing heavy is imported.

    Raises ScenarioError or PluginError for what the user must mend, a stack named on the command
    line that cannot run here included.
    """
    for name in request.sections:
        find_entry(GROUP, KIND, name)
    file, notices = add_what_plugins_need(resolve_request(draft, request), request)
    file = with_chosen_stacks(file, request)
    points = chosen_points(file, request, machine.device)
    open_sizes = _open_sizes(file, points, request)
    notices += tuple(dict.fromkeys(_stand_in_notices(open_sizes)))
    planned = _plan_points(file, points, machine, request, notices)
    _refuse_skipped(planned, {*request.plugins, *request.only})
    choices = [f"{text}{at(one.sweep)}" for one in points for text in _choice_notices(one)]
    trackers, left_out = make_trackers(file, request.trackers)
    plan = Plan(
        file.scenario,
        file.scenario.baseline_name(),
        planned,
        request,
        tuple(dict.fromkeys((*notices, *choices, *left_out, *_of_hubs(planned)))),
        trackers,
        open_sizes,
    )
    if not request.oversubscribe:
        refuse_oversubscription([one.experiment.scenario for one in plan.runnable], machine)
    if not request.force:
        refuse_needs([(one.experiment, one.need) for one in plan.runnable if one.need])
    return plan


def _of_hubs(planned: Iterable[Planned]) -> Iterator[str]:
    """Yield what is to be known of each model of a hub."""
    for model in {one.experiment.scenario.model.id: one for one in planned}.values():
        yield from hub_notices(model.experiment.scenario.model)


def _plan_points(
    file: ResolvedFile,
    points: Sequence[Point],
    machine: Machine,
    request: PlanRequest,
    notices: tuple[str, ...],
) -> tuple[Planned, ...]:
    """Plan the points in their environments, which are built where they are missing."""
    environments = find_environments(file, points, request.build_environments, request.notify)

    def plan_points() -> tuple[Planned, ...]:
        return tuple(
            _plan_point(
                point,
                active,
                environments.get(point.scenario.resources.environment),
                machine,
                notices,
            )
            for point, active in activate_points(file, points, environments)
        )

    try_in_copy((use for point in points for use in point.uses), plan_points)
    return plan_points()


def _open_sizes(
    file: ResolvedFile, points: Sequence[Point], request: PlanRequest
) -> dict[str, tuple[str, ...]]:
    """Return the keys that are still to be worked out, by sweep point; none is left out.

    Raises ScenarioError where that is not what was requested.
    """
    found: dict[str, tuple[str, ...]] = {}
    for point in points:
        if keys := tuple(key for key, size in point.sizes.items() if size is None):
            found[canonical_json(point.sweep)] = keys
    for key, *_ in () if request.stand_ins else found.values():
        raise ScenarioError(
            f"{file.where(tuple(key.split('.')))}: {key}: auto is worked out by `accel-bench run`; "
            f"here it needs a number, such as --set {key}={STAND_INS[key]}"
        )
    return found


def _stand_in_notices(open_sizes: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for keys in open_sizes.values():
        for key in keys:
            yield (
                f"{key}: auto is worked out before round 1; planned with {STAND_INS[key]} until "
                "then, so ids and memory are not those of the run"
            )


def _choice_notices(point: Point) -> tuple[str, ...]:
    """Return how the sizes of a sweep point came about."""
    sizes = filter(None, point.sizes.values())
    return tuple(f"{one.key}: {one.value:,} for auto: {one.because}" for one in sizes)


def _refuse_skipped(experiments: Sequence[Planned], named: Collection[str]) -> None:
    """Refuse to skip a stack that the command line names."""
    for planned in experiments:
        stack = planned.experiment.stack.name
        if stack in named and planned.skipped and not is_excluded(planned.skipped):
            raise PluginError(f"stack {stack!r} cannot run here: {'; '.join(planned.skipped)}")


def _plan_point(
    point: Point,
    active: ActivePlugins,
    environment: Environment | None,
    machine: Machine,
    notices: tuple[str, ...],
) -> Planned:
    """Compute the id, and check constraints and memory."""
    there = environment.interpreter if environment else None
    machine = there.on(machine) if there else machine
    scenario, stack = point.scenario, point.stack
    draft = Experiment(
        id="",
        scenario=scenario,
        stack=stack,
        sweep=point.sweep,
        tag=point.tag,
        identity={},
        notices=(*notices, *_choice_notices(point)),
    )
    identity = identity_of(scenario, stack, environment_facts(draft, active, machine, there))
    experiment = draft.model_copy(update={"id": digest(identity), "identity": identity})
    reasons = tuple(f"{EXCLUDED}{reason}" for reason in point.excluded)
    reasons = reasons or tuple(missing_extras(use.use for use in stack.uses).values())
    reasons = reasons or (environment.missing if environment else ())
    reasons = reasons or unmet_constraints(experiment, active, machine, there)
    need = None if reasons else memory_need(experiment, active, machine)
    return Planned(experiment, active, reasons, need, environment)


def scenario_of(planned: Planned) -> dict[str, Any]:
    """Return a scenario file of this one experiment: running it gives the same id."""
    experiment = planned.experiment
    work = experiment.scenario.model_dump(mode="json", exclude_none=True)
    uses = [use.model_dump(mode="json") for use in experiment.stack.uses]
    named = {}
    if chosen := planned.environment:
        named = {"environments": {chosen.name: chosen.settings.model_dump(exclude_defaults=True)}}
    return {**work, **named, "stacks": {experiment.stack.name: {"use": uses}}}

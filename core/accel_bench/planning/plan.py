"""Plan the experiments: those to run with their ids, those to skip with their reasons."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from accel_bench.analysis.aggregate import BY_THE_USER, StopReason
from accel_bench.analysis.schema import PlannedSummary, Summary
from accel_bench.analysis.summary import summarize
from accel_bench.documents.base import JsonValue
from accel_bench.documents.canonical import canonical_json, digest
from accel_bench.documents.redaction import Redactor
from accel_bench.errors import PluginError, ScenarioError, did_you_mean
from accel_bench.machine.info import Machine
from accel_bench.planning.defaults import (
    add_stack,
    add_what_plugins_need,
    sweep_seeds,
    with_gpu_metrics,
)
from accel_bench.planning.environments import (
    Environment,
    find_environments,
    with_swept_environments,
    with_versions,
)
from accel_bench.planning.ladder_checks import check_ladder
from accel_bench.planning.limits import (
    MemoryNeed,
    memory_need,
    refuse_needs,
    refuse_oversubscription,
)
from accel_bench.planning.resolve import ResolvedFile, resolve
from accel_bench.plugins.constraints import unmet_constraints
from accel_bench.plugins.interpreter import Interpreter
from accel_bench.plugins.loading import restored_environment
from accel_bench.plugins.manager import (
    ActivePlugin,
    ActivePlugins,
    activate,
    attribute_errors_to,
    try_in_copy,
)
from accel_bench.plugins.registry import missing_extra
from accel_bench.result import Result
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.environment import recorded
from accel_bench.scenario.experiment import Experiment, identity_of
from accel_bench.scenario.models import Scenario, ScenarioFile, Stack
from accel_bench.scenario.sweep import Point, count_points
from accel_bench.scenario.uses import Use


@dataclass(frozen=True)
class PlanRequest:
    """Changes of the command line to the file."""

    plugins: tuple[str, ...] = ()
    """Stacks to add: a plugin's name, or several joined by `+`."""

    only: tuple[str, ...] = ()
    """Stacks to run, beside the baseline; empty runs all."""

    tags: tuple[str, ...] = ()
    """Tags of the sweep points to run, with `*` for any letters; empty runs all."""

    reference_point: str = ""
    """Tag of the sweep point with which the others are compared; empty takes the first."""

    overrides: tuple[tuple[str, Any], ...] = ()
    """Dotted keys and their values."""

    seeds: int = 0
    """Repeat every experiment with that many seeds of weights and data; 0 leaves the file's."""

    no_baseline: bool = False

    allow_environment: bool = False
    """Let the scenario set any environment variable."""

    trust_remote_code: bool = False
    """Let models bring code of their own."""

    max_runs: int = 1000

    force: bool = False
    """Plan what needs more memory than the machine has."""

    oversubscribe: bool = False
    """Plan more processes than cores."""

    build_environments: bool = True
    """Build the scenario's environments that are missing, which takes minutes."""

    notify: Callable[[str], object] = print
    """Takes a line before something that takes minutes."""


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
    """What was added to the work because a plugin needs it."""

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
        rounds = self.file.measure.rounds
        return summarize(
            self.file.name,
            self.baseline,
            self.summaries,
            results,
            rounds,
            stopped=stopped,
            reference=self.request.reference_point,
        )

    @property
    def runnable(self) -> list[Planned]:
        """Return the experiments that are to run."""
        return [planned for planned in self.planned if not planned.skipped]

    @property
    def runs(self) -> int:
        """Return the number of runs in all rounds."""
        return len(self.runnable) * self.file.measure.rounds

    @property
    def nothing(self) -> str:
        """Return why nothing can run here; empty when something can."""
        reasons = {reason for planned in self.planned for reason in planned.skipped}
        return "" if self.runnable else f"nothing can run here: {'; '.join(sorted(reasons))}"


@restored_environment()
def make_plan(draft: Draft, machine: Machine, request: PlanRequest) -> Plan:
    """Return the plan. Nothing is started, and nothing heavy is imported.

    Raises ScenarioError or PluginError for what the user must mend, a stack named on the command
    line that cannot run here included.
    """
    file = resolve_request(draft, request)
    chosen = _choose(file.scenario, request)
    # Of these a plugin that is not installed is an error; any other stack is skipped without it.
    needed = {file.scenario.baseline_name(), *request.plugins, *request.only}
    present = [
        name for name in chosen if name in needed or not _missing_extras(file.stacks[name].use)
    ]
    check_ladder(file, present)
    file, added = add_what_plugins_need(file, present)
    notices = (*file.written.notices, *added)
    baseline = file.scenario.baseline_name()
    if not file.is_set("baseline") and "baseline" not in file.stacks:
        notices += (f"no stack is called baseline: {baseline!r} is taken for it",)
    stacks = {name: file.stacks[name] for name in chosen}
    file = replace(file, scenario=file.scenario.model_copy(update={"stacks": stacks}))
    _refuse_too_many(file.scenario, request.max_runs)
    points = _with_tags(list(file.points(machine.device)), request.tags)
    if request.reference_point:
        _refuse_unknown_tag(request.reference_point, {point.tag for point in points})
    environments = find_environments(file, points, request.build_environments, request.notify)

    def plan_points() -> tuple[Planned, ...]:
        return tuple(
            _plan_point(
                file,
                point,
                environments.get(point.scenario.resources.environment),
                machine,
                notices,
            )
            for point in points
        )

    try_in_copy((use for point in points for use in point.uses), plan_points)
    planned = plan_points()
    _refuse_skipped(planned, {*request.plugins, *request.only})
    plan = Plan(file.scenario, baseline, planned, request, notices)
    if not request.oversubscribe:
        refuse_oversubscription([one.experiment.scenario for one in plan.runnable], machine)
    if not request.force:
        refuse_needs([(one.experiment, one.need) for one in plan.runnable if one.need])
    return plan


def resolve_request(draft: Draft, request: PlanRequest) -> ResolvedFile:
    """Return the file with the changes of the command line. Raises ScenarioError."""
    file = resolve(_requested(draft, request), request.allow_environment)
    return with_swept_environments(file)


def chosen_points(file: ResolvedFile, request: PlanRequest, device: str) -> list[Point]:
    """Return the points of the stacks that the request names. Raises ScenarioError."""
    stacks = {name: file.stacks[name] for name in _choose(file.scenario, request)}
    file = replace(file, scenario=file.scenario.model_copy(update={"stacks": stacks}))
    _refuse_too_many(file.scenario, request.max_runs)
    return _with_tags(list(file.points(device)), request.tags)


def _requested(draft: Draft, request: PlanRequest) -> Draft:
    """Return the draft with the stacks, overrides and seeds of the command line."""
    draft = copy.deepcopy(draft)
    for stack in request.plugins:
        add_stack(draft, stack)
    draft.override(request.overrides)
    if request.seeds:
        sweep_seeds(draft, request.seeds)
    return draft


def _choose(file: ScenarioFile, request: PlanRequest) -> list[str]:
    """Return the stacks of `--only`, and the baseline unless `--no-baseline` is given."""
    for name in request.only:
        if name not in file.stacks:
            raise ScenarioError(f"no stack is called {name!r}{did_you_mean(name, file.stacks)}")
    baseline = file.baseline_name()
    chosen = [name for name in file.stacks if not request.only or name in {*request.only, baseline}]
    if request.no_baseline and baseline not in request.only:
        chosen = [name for name in chosen if name != baseline]
    if not chosen:
        raise ScenarioError("--no-baseline leaves no stack to run")
    return chosen


def _with_tags(points: list[Point], tags: Sequence[str]) -> list[Point]:
    """Return the points that one of the tags means; each must mean one."""
    known = {point.tag for point in points}
    for tag in tags:
        if not any(fnmatchcase(name, tag) for name in known):
            _refuse_unknown_tag(tag, known)
    return [
        point for point in points if not tags or any(fnmatchcase(point.tag, tag) for tag in tags)
    ]


def _refuse_unknown_tag(tag: str, known: Collection[str]) -> None:
    if tag not in known:
        hint = did_you_mean(tag, filter(None, known))
        raise ScenarioError(f"no point of the sweep has the tag {tag!r}{hint}")


def _refuse_too_many(file: ScenarioFile, max_runs: int) -> None:
    """Count the runs before any point is made."""
    runs = count_points(file) * file.measure.rounds
    if runs > max_runs:
        raise ScenarioError(
            f"scenario {file.name!r} asks for {runs:,} runs, more than --max-runs {max_runs:,}; "
            "sweep over less, or raise the limit"
        )


def _refuse_skipped(experiments: Sequence[Planned], named: Collection[str]) -> None:
    """Refuse to skip a stack that the command line names."""
    for planned in experiments:
        stack = planned.experiment.stack.name
        excluded = all(reason.startswith("excluded: ") for reason in planned.skipped)
        if stack in named and not excluded:
            raise PluginError(f"stack {stack!r} cannot run here: {'; '.join(planned.skipped)}")


def _plan_point(
    file: ResolvedFile,
    point: Point,
    environment: Environment | None,
    machine: Machine,
    notices: tuple[str, ...],
) -> Planned:
    """Activate the plugins, check constraints and compute the id."""
    there = environment.interpreter if environment else None
    machine = there.on(machine) if there else machine
    scenario, stack = with_gpu_metrics(point.scenario), point.stack
    missing = _missing_extras(stack.uses)
    present = tuple(use for use in stack.uses if use.use not in missing)
    active = _activate(file, scenario, stack.model_copy(update={"uses": present}))
    groups = _data_parallel(active, scenario)
    if groups != scenario.data_parallel:
        point = file.with_data_parallel(point, groups)
        scenario = with_gpu_metrics(point.scenario)
    draft = Experiment(
        id="",
        scenario=scenario,
        stack=stack,
        sweep=point.sweep,
        tag=point.tag,
        identity={},
        notices=notices,
    )
    active = with_versions(active, there.distributions) if there else active
    identity = identity_of(scenario, stack, _environment(draft, active, machine, there))
    experiment = draft.model_copy(update={"id": digest(identity), "identity": identity})
    reasons = tuple(f"excluded: {reason}" for reason in point.excluded)
    reasons = reasons or tuple(missing.values())
    reasons = reasons or (environment.missing if environment else ())
    reasons = reasons or unmet_constraints(experiment, active, machine, there)
    need = None if reasons else memory_need(experiment, active, machine)
    return Planned(experiment, active, reasons, need, environment)


def _data_parallel(active: ActivePlugins, scenario: Scenario) -> int:
    """Return how many groups of ranks take batches of their own, as the parallel plugin says.

    Raises ScenarioError where the scenario says another number.
    """
    plugin = active.answers("parallelize_model")
    if plugin is None:
        return scenario.data_parallel
    with attribute_errors_to(plugin, "data_parallel"):
        groups = int(plugin.instance.data_parallel(scenario))
    if scenario.resources.data_parallel not in (None, groups):
        raise ScenarioError(
            f"resources.data_parallel is {scenario.data_parallel}, and {plugin.name} makes "
            f"{groups} of {scenario.world_size} devices; leave it out"
        )
    return groups


def _missing_extras(uses: Iterable[Use]) -> dict[str, str]:
    """Return how to install each plugin that an extra brings and that is not installed."""
    reasons = {use.use: missing_extra(use.use) for use in uses}
    return {name: reason for name, reason in reasons.items() if reason}


def _activate(file: ResolvedFile, scenario: Scenario, stack: Stack) -> ActivePlugins:
    """Activate a stack's plugins; an error in a ladder's stack names its item."""
    from_ladder = stack.ladder is not None and any(stack.ladder.holds)
    # Numbers of uses are places in the file only where every one of them is here.
    as_written = not from_ladder and len(file.stacks[stack.name].use) == len(stack.uses)
    try:
        return activate(scenario, stack, where=file.where if as_written else None)
    except PluginError as error:
        if not from_ladder:
            raise
        where = file.where(("stacks", stack.name))
        raise PluginError(f"{where}: the ladder's stack {stack.name!r}: {error}") from error


def _environment(
    experiment: Experiment,
    active: ActivePlugins,
    machine: Machine,
    there: Interpreter | None,
) -> dict[str, Any]:
    """Return what changes a result and is in no scenario: versions, devices, fingerprints.

    Of an environment of the scenario's own that is every package.
    """
    on_gpu = experiment.scenario.resources.device == "cuda"
    count = experiment.scenario.resources.devices
    devices = [gpu.name for gpu in machine.gpus[:count]] if on_gpu else [machine.processor]
    measured = [plugin for plugin in active.plugins if plugin.slot != "launcher"]
    fingerprints = {plugin.name: _fingerprint(plugin, experiment) for plugin in measured}
    return {
        "python": machine.python,
        "versions": machine.versions,
        "plugins": [plugin.version.model_dump() for plugin in measured],
        "cuda": machine.cuda if on_gpu else None,
        "driver": machine.driver if on_gpu else None,
        "devices": devices,
        "cores": machine.cores,
        "fingerprints": {name: one for name, one in fingerprints.items() if one is not None},
        "variables": recorded(os.environ),
        **({"distributions": there.distributions} if there else {}),
    }


def _fingerprint(plugin: ActivePlugin, experiment: Experiment) -> JsonValue:
    """Return what a plugin adds to the id. Raises HookError when it raises or returns no JSON."""
    with attribute_errors_to(plugin, "fingerprint"):
        found = plugin.instance.fingerprint(experiment)
        canonical_json(found)
    return found


def scenario_of(planned: Planned) -> dict[str, Any]:
    """Return a scenario file of this one experiment: running it gives the same id."""
    experiment = planned.experiment
    work = experiment.scenario.model_dump(mode="json", exclude_none=True)
    uses = [use.model_dump(mode="json") for use in experiment.stack.uses]
    named = {}
    if chosen := planned.environment:
        named = {"environments": {chosen.name: chosen.settings.model_dump(exclude_defaults=True)}}
    return {**work, **named, "stacks": {experiment.stack.name: {"use": uses}}}

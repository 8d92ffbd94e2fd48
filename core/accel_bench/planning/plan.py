"""Planning of a scenario's experiments, from the file to ids and reasons to skip, in one pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from accel_bench.analysis.sections import GROUP, KIND
from accel_bench.analysis.wording import count, join_names, label_of, size
from accel_bench.catalog.hub import hub_notices
from accel_bench.documents.base import JsonValue
from accel_bench.documents.canonical import canonical_json, digest
from accel_bench.errors import PluginError, ScenarioError
from accel_bench.machine.devices import device_type
from accel_bench.machine.info import Machine
from accel_bench.machine.scheduling import ended_children
from accel_bench.planning.activation import (
    ActivatedPoint,
    Environment,
    activate_points,
    find_environments,
    make_trackers,
)
from accel_bench.planning.defaults import needs_of_plugins
from accel_bench.planning.planned import MemoryNeed, Plan, Planned, scenario_of
from accel_bench.planning.request import PlanRequest
from accel_bench.planning.resolve import ResolvedFile, chosen_points, resolve_request
from accel_bench.plugins.active import ActivePlugin, ActivePlugins, attribute_errors_to
from accel_bench.plugins.constraints import unmet_constraints
from accel_bench.plugins.doors import find_entries, find_entry
from accel_bench.plugins.loading import restored_environment
from accel_bench.plugins.manager import try_apart
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.environment import recorded
from accel_bench.scenario.experiment import Experiment, identity_of
from accel_bench.scenario.sweep import STAND_INS, Point, at

__all__ = ["MemoryNeed", "Plan", "PlanRequest", "Planned", "make_plan", "scenario_of"]


NEEDS = "accel_bench.needs"
"""Group of the entry point `memory`, which estimates the least memory of an experiment.

It is a function of the experiment, its active plugins and the machine; it returns a `MemoryNeed`,
or None if unknown.
"""


@ended_children()
@restored_environment()
def make_plan(draft: Draft, machine: Machine, request: PlanRequest) -> Plan:
    """Return the plan of a scenario; no run is started, and nothing heavy is imported.

    Raises ScenarioError or PluginError for faulty input, and for a stack named on the command line
    that cannot run here.
    """
    for name in request.sections:
        find_entry(GROUP, KIND, name)
    file = resolve_request(draft, request)
    settings, notices = needs_of_plugins(file, request)
    file = file.with_settings(settings)
    points = chosen_points(file, request, machine.device)
    notices += tuple(stand_in_notices(file, points, request))
    trackers, left_out = make_trackers(file, request.trackers)
    planned = _plan_points(file, points, machine, request, notices)
    choices = [f"{text}{at(point.sweep)}" for point in points for text in _choice_notices(point)]
    plan = Plan(
        file.scenario,
        planned,
        request,
        tuple(dict.fromkeys((*notices, *choices, *left_out, *_of_hubs(planned)))),
        trackers,
    )
    if not request.oversubscribe:
        _refuse_oversubscription(plan, machine)
    if not request.force:
        _refuse_needs(plan)
    return plan


def _of_hubs(planned: Iterable[Planned]) -> Iterator[str]:
    for model in {row.experiment.scenario.model.id: row for row in planned}.values():
        yield from hub_notices(model.experiment.scenario.model)


def _plan_points(
    file: ResolvedFile,
    points: Sequence[Point],
    machine: Machine,
    request: PlanRequest,
    notices: tuple[str, ...],
) -> tuple[Planned, ...]:
    """Return the planned experiments of the points; builds missing environments if requested."""
    notify = request.notify if request.build_environments else None
    environments = find_environments(file, points, notify)
    named = {*request.plugins, *request.stacks_of(file.scenario.name)}
    plan_point = partial(_plan_point, machine=machine, named=named, notices=notices)
    work = partial(_planned, file, points, environments, plan_point)
    try_apart((use for point in points for use in point.uses), work)
    return work()


def _planned(
    file: ResolvedFile,
    points: Sequence[Point],
    environments: Mapping[str, Environment],
    plan_point: Callable[[ActivatedPoint], Planned],
) -> tuple[Planned, ...]:
    return tuple(map(plan_point, activate_points(file, points, environments)))


def _plan_point(
    one: ActivatedPoint, machine: Machine, named: Collection[str], notices: tuple[str, ...]
) -> Planned:
    """Return the experiment of a point with its id, reasons to skip it, and its least memory.
    A stack in `named` that cannot run here raises PluginError."""
    point, active, environment = one.point, one.active, one.environment
    there = environment.interpreter if environment else None
    machine = there.on(machine) if there else machine
    draft = Experiment(
        id="",
        scenario=point.scenario,
        stack=point.stack,
        sweep=point.sweep,
        tag=point.tag,
        identity={},
        notices=(*notices, *_choice_notices(point)),
    )
    facts = _inputs(draft, active, machine)
    if there is not None:
        facts["distributions"] = there.distributions
    identity = identity_of(point.scenario, point.stack, facts)
    experiment = draft.model_copy(update={"id": digest(identity), "identity": identity})
    python = there.command if there else ()
    reasons = one.skipped or unmet_constraints(experiment, active, machine, python)
    stack = point.stack.name
    if reasons and not point.excluded and stack in named:
        raise PluginError(f"stack {stack!r} cannot run here: {'; '.join(reasons)}")
    need = None if reasons else _memory_need(experiment, active, machine)
    host = device_type(point.scenario.resources.device).on_host
    return Planned(experiment, active, reasons, need, host, environment, point.open_sizes)


def _memory_need(
    experiment: Experiment, active: ActivePlugins, machine: Machine
) -> MemoryNeed | None:
    """Return the least memory of an experiment; None if no entry point estimates it."""
    entry = find_entries(NEEDS, "estimate").get("memory")
    if entry is None:
        return None
    with entry.blamed():
        need: MemoryNeed | None = entry.load()(experiment, active, machine)
        return need


def _inputs(experiment: Experiment, active: ActivePlugins, machine: Machine) -> dict[str, Any]:
    """Return what a result depends on beside the scenario, by name: versions, devices, plugins'
    fingerprints, environment variables."""
    resources = experiment.scenario.resources
    device = device_type(resources.device)
    devices = list(device.find(machine)[: resources.devices])
    measured = [plugin for plugin in active.plugins if plugin.slot != "launcher"]
    fingerprints = {plugin.name: _fingerprint(plugin, experiment) for plugin in measured}
    return {
        "python": machine.python,
        "versions": machine.versions,
        "plugins": [plugin.version.model_dump() for plugin in measured],
        "cuda": machine.cuda if resources.device == "cuda" else None,
        "driver": device.driver(machine),
        "devices": devices,
        "cores": machine.cores,
        "fingerprints": {name: value for name, value in fingerprints.items() if value is not None},
        "variables": recorded(os.environ),
    }


def _fingerprint(plugin: ActivePlugin, experiment: Experiment) -> JsonValue:
    """Return a plugin's part of an experiment's id. Raises HookError if the plugin's hook fails or
    returns something other than JSON."""
    with attribute_errors_to(plugin, "fingerprint"):
        value = plugin.instance.fingerprint(experiment)
        canonical_json(value)
    return value


def stand_in_notices(
    file: ResolvedFile, points: Iterable[Point], request: PlanRequest
) -> Iterator[str]:
    """Yield a notice for each key whose `auto` is planned with a placeholder.

    Raises ScenarioError unless the request allows placeholders.
    """
    for key in dict.fromkeys(key for point in points for key in point.open_sizes):
        if not request.stand_ins:
            raise ScenarioError(
                f"{file.where(tuple(key.split('.')))}: {key}: auto is worked out by `accel-bench "
                f"run`; here it needs a number, such as --set {key}={STAND_INS[key]}"
            )
        yield (
            f"{key}: auto is worked out before round 1; planned with {STAND_INS[key]} until then, "
            "so ids and memory are not those of the run"
        )


def _choice_notices(point: Point) -> tuple[str, ...]:
    sizes = filter(None, point.sizes.values())
    return tuple(f"{choice.key}: {choice.value:,} for auto: {choice.because}" for choice in sizes)


def _refuse_oversubscription(plan: Plan, machine: Machine) -> None:
    """Raise ScenarioError for more processes on a node's CPU than it has cores."""
    on_cpu = [row.experiment.scenario.resources.devices for row in plan.runnable if row.on_host]
    if (most := max(on_cpu, default=0)) > machine.cores:
        raise ScenarioError(
            f"resources.devices: {most:,} processes would share {count(machine.cores, 'core')}; "
            f"set it to {machine.cores} or less, or pass --oversubscribe"
        )


def _refuse_needs(plan: Plan) -> None:
    """Raise ScenarioError with all stacks that need more memory than the device or host has."""
    stacks: dict[str, list[str]] = {}
    for row in plan.runnable:
        if row.need and not row.need.fits:
            where = "the host" if row.on_host else "the device"
            text = f"{row.need.describe()}, and {where} has {size(row.need.available_bytes or 0)}"
            stacks.setdefault(text, []).append(label_of(row.experiment))
    if stacks:
        lines = [f"{join_names(names)}: {text}" for text, names in stacks.items()]
        raise ScenarioError(
            f"not enough memory. {'; '.join(lines)}. Choose a smaller model.id or fewer layers "
            "(model.overrides), a smaller model.dtype, train an adapter (adapter.use=lora), or "
            "pass --force to run it all the same"
        )

"""The plan: every experiment with its id, and every one that is not run with its reason."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from accel_bench.constraints import unmet_constraints
from accel_bench.errors import PluginError, ScenarioError, did_you_mean
from accel_bench.installed import find
from accel_bench.machine import Machine
from accel_bench.plugins import Active, Member, activate, blaming, load_class
from accel_bench.scenario.base import JsonValue
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.environment import recorded
from accel_bench.scenario.expand import (
    Point,
    check_file,
    count_points,
    expand,
    refuse_idle_exclusions,
)
from accel_bench.scenario.experiment import Experiment, canonical_json, digest, identity_of
from accel_bench.scenario.models import Scenario, ScenarioFile
from accel_bench.scenario.uses import Use

ADAPTER_WHEN_NEEDED = "lora"
"""The adapter that is added to the work when a plugin needs one and the scenario has none."""


METRIC_ON_GPU = "nvml"
"""The metric that is measured beside the default ones where there is a GPU."""


@dataclass(frozen=True)
class Wishes:
    """What the command line asks for beyond the file."""

    plugins: tuple[str, ...] = ()
    """Stacks to add: a plugin's name, or several joined by `+`."""

    only: tuple[str, ...] = ()
    """Stacks to run, beside the baseline; empty runs all."""

    overrides: tuple[tuple[str, Any], ...] = ()
    """Dotted keys and their values."""

    seeds: int = 0
    """Repeat every experiment with that many seeds of weights and data; 0 leaves the file's."""

    no_baseline: bool = False
    """Leave the baseline out."""

    allow_environment: bool = False
    """Let the scenario set any environment variable."""

    trust_remote_code: bool = False
    """Let models bring code of their own."""

    max_runs: int = 1000
    """Refuse more runs than this before anything is made."""


@dataclass(frozen=True)
class Planned:
    """One experiment of the plan."""

    experiment: Experiment
    """What would be run."""

    active: Active
    """Its plugins."""

    skipped: tuple[str, ...] = ()
    """Why it is not run; empty when it is."""


@dataclass(frozen=True)
class Plan:
    """All experiments of one scenario, in order."""

    file: ScenarioFile
    """The scenario as it was written, with the command line's changes."""

    baseline: str
    """The stack that the others are compared with."""

    planned: tuple[Planned, ...]
    """Sweep points outermost, within each the stacks in written order."""

    wishes: Wishes
    """What the command line asked for."""

    notices: tuple[str, ...] = field(default=())
    """What was added to the work because a plugin needs it."""

    @property
    def runnable(self) -> list[Planned]:
        """Those that are not skipped."""
        return [planned for planned in self.planned if not planned.skipped]

    @property
    def runs(self) -> int:
        """Runs that all rounds need."""
        return len(self.runnable) * self.file.measure.repeats

    @property
    def nothing(self) -> str:
        """Why nothing of it can run here; empty when something can."""
        reasons = {reason for planned in self.planned for reason in planned.skipped}
        return "" if self.runnable else f"nothing can run here: {'; '.join(sorted(reasons))}"


def make_plan(draft: Draft, machine: Machine, wishes: Wishes) -> Plan:
    """Work out what to run. Nothing is started, and nothing heavy is imported.

    Raises ScenarioError or PluginError for what the user must mend; a skipped stack that was asked
    for by name is an error too.
    """
    draft = copy.deepcopy(draft)
    for wish in wishes.plugins:
        _add_stack(draft, wish)
    for key, value in wishes.overrides:
        draft.set(key, value, f"--set {key}")
    if wishes.seeds:
        _sweep_seeds(draft, wishes.seeds)
    file = check_file(draft, wishes.allow_environment)
    chosen = _choose(file, wishes)
    notices = _add_what_plugins_need(draft, file, chosen)
    if draft.get("baseline") is None and "baseline" not in file.stacks:
        notices += (f"no stack is called baseline: {file.baseline_name()!r} is taken for it",)
    if notices:
        file = check_file(draft, wishes.allow_environment)
    file = file.model_copy(update={"stacks": {name: file.stacks[name] for name in chosen}})
    _refuse_too_many(file, wishes.max_runs)
    points = list(expand(draft, file, machine.device, wishes.allow_environment))
    refuse_idle_exclusions(draft, file, points)
    planned = tuple(_plan_point(point, machine, notices) for point in points)
    plan = Plan(file, file.baseline_name(), planned, wishes, notices)
    _refuse_skipped_wishes(plan)
    return plan


def _add_stack(draft: Draft, wish: str) -> None:
    """Add the stack of `--plugin`; a file without stacks of its own is the baseline as it is."""
    names = wish.split("+")
    for name in names:
        find(name)
    stacks = draft.data.setdefault("stacks", {"baseline": {"use": []}})
    if not isinstance(stacks, dict):
        return
    if stacks.get(wish, {"use": names}) != {"use": names}:
        raise ScenarioError(
            f"{draft.where(('stacks', wish))}: the file has a stack {wish!r} of its own, so "
            f"--plugin {wish} cannot add one; --only {wish} runs it"
        )
    stacks[wish] = {"use": names}
    draft.places["stacks", wish] = f"--plugin {wish}"


def _sweep_seeds(draft: Draft, count: int) -> None:
    """Have `--seeds` sweep weights and data together, from the seeds that the file sets."""
    if draft.get("zip") is not None:
        raise ScenarioError(f"{draft.where(('zip',))}: --seeds cannot be added to a zip")
    values = {}
    for key in ("train.seed", "data.seed"):
        slot, _, name = key.partition(".")
        settings = draft.data.get(slot)
        first = settings.pop(name, 0) if isinstance(settings, dict) else 0
        if not isinstance(first, int):
            raise ScenarioError(f"{draft.where((slot, name))}: {key} is no whole number")
        values[key] = list(range(first, first + count))
    for key, seeds in values.items():
        draft.set(f"zip.{key}", seeds, f"--seeds {count}")


def _choose(file: ScenarioFile, wishes: Wishes) -> list[str]:
    """Stacks to run: those of `--only`, and the baseline unless it is not wanted."""
    for name in wishes.only:
        if name not in file.stacks:
            raise ScenarioError(f"no stack is called {name!r}{did_you_mean(name, file.stacks)}")
    baseline = file.baseline_name()
    chosen = [name for name in file.stacks if not wishes.only or name in {*wishes.only, baseline}]
    if wishes.no_baseline and baseline not in wishes.only:
        chosen = [name for name in chosen if name != baseline]
    if not chosen:
        raise ScenarioError("--no-baseline leaves no stack to run")
    return chosen


def _refuse_too_many(file: ScenarioFile, max_runs: int) -> None:
    """Count before anything is allocated."""
    runs = count_points(file) * file.measure.repeats
    if runs > max_runs:
        raise ScenarioError(
            f"scenario {file.name!r} asks for {runs:,} runs, more than --max-runs {max_runs:,}; "
            "sweep over less, or raise the limit"
        )


def _refuse_skipped_wishes(plan: Plan) -> None:
    """A stack that was asked for by name must run."""
    asked = {*plan.wishes.plugins, *plan.wishes.only}
    for planned in plan.planned:
        stack = planned.experiment.stack.name
        if planned.skipped and stack in asked and not _excluded_by_file(planned):
            raise PluginError(f"stack {stack!r} cannot run here: {'; '.join(planned.skipped)}")


def _excluded_by_file(planned: Planned) -> bool:
    return all(reason.startswith("excluded: ") for reason in planned.skipped)


def _add_what_plugins_need(
    draft: Draft, file: ScenarioFile, chosen: Sequence[str]
) -> tuple[str, ...]:
    """Add an adapter or a dtype that a chosen stack's plugin needs to the work of every stack.

    A comparison changes one thing: so the baseline gets them too. What the file sweeps, or the
    stack sets itself, is not added.
    """
    notices: list[str] = []
    for stack in chosen:
        entry = file.stacks[stack]
        decided = {*file.sweep, *file.zip, *entry.set}
        for name in [use.use for use in entry.use]:
            kind = load_class(name)
            if kind.needs_adapter and not _is_given(draft, decided, "adapter"):
                draft.set("adapter.use", ADAPTER_WHEN_NEEDED, f"added for {name}")
                added = f"adapter: {ADAPTER_WHEN_NEEDED}"
                notices.append(f"{added} added to every stack: {name} needs one")
            usual = "float32" in (kind.dtypes or ("float32",))
            if not usual and not _is_given(draft, decided, "model.dtype"):
                dtype = sorted(kind.dtypes or ())[0]
                draft.set("model.dtype", dtype, f"added for {name}")
                notices.append(f"model.dtype: {dtype} set for every stack: {name} needs it")
    return tuple(notices)


def _is_given(draft: Draft, decided: set[str], key: str) -> bool:
    """Whether the file, its sweep or the stack decides on a key, or on the plugin of a slot."""
    written = draft.get(key)
    if isinstance(written, dict):
        written = written.get("use")
    return written is not None or not decided.isdisjoint({key, f"{key}.use"})


def _plan_point(point: Point, machine: Machine, notices: tuple[str, ...]) -> Planned:
    """Activate the plugins, check constraints and work out the id."""
    scenario = _with_metrics_of_device(point.scenario)
    active = activate(scenario, point.stack)
    draft = Experiment(
        id="", scenario=scenario, stack=point.stack, sweep=point.sweep, identity={}, notices=notices
    )
    identity = identity_of(scenario, point.stack, _environment(draft, active, machine))
    experiment = draft.model_copy(update={"id": digest(identity), "identity": identity})
    reasons = tuple(f"excluded: {reason}" for reason in point.excluded)
    return Planned(experiment, active, reasons or unmet_constraints(experiment, active, machine))


def _with_metrics_of_device(scenario: Scenario) -> Scenario:
    """Where nobody has chosen metrics, a GPU is watched from outside too."""
    if scenario.resources.device != "cuda" or "metrics" in scenario.model_fields_set:
        return scenario
    return scenario.model_copy(update={"metrics": (*scenario.metrics, Use(use=METRIC_ON_GPU))})


def _environment(experiment: Experiment, active: Active, machine: Machine) -> dict[str, Any]:
    """Versions, devices, content of files: what can change a result and is in no scenario."""
    on_gpu = experiment.scenario.resources.device == "cuda"
    count = experiment.scenario.resources.devices
    devices = [gpu.name for gpu in machine.gpus[:count]] if on_gpu else [machine.processor]
    measured = [member for member in active.members if member.slot != "launcher"]
    fingerprints = {
        member.name: found
        for member in measured
        if (found := _fingerprint(member, experiment)) is not None
    }
    return {
        "python": machine.python,
        "versions": machine.versions,
        "plugins": [member.version.model_dump() for member in measured],
        "cuda": machine.cuda if on_gpu else None,
        "driver": machine.driver if on_gpu else None,
        "devices": devices,
        "cores": machine.cores,
        "fingerprints": fingerprints,
        "variables": recorded(os.environ),
    }


def _fingerprint(member: Member, experiment: Experiment) -> JsonValue:
    """What a plugin adds to the id. Raises HookError when it raises or returns no JSON."""
    with blaming(member, "fingerprint"):
        found = member.instance.fingerprint(experiment)
        canonical_json(found)
    return found


def scenario_of(planned: Planned) -> dict[str, Any]:
    """A scenario file that holds this one experiment: running it gives the same id."""
    experiment = planned.experiment
    work = experiment.scenario.model_dump(mode="json", exclude_none=True)
    uses = [use.model_dump(mode="json") for use in experiment.stack.uses]
    return {**work, "stacks": {experiment.stack.name: {"use": uses}}}

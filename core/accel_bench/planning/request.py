"""Request of the command line to the planner, and the scenario file with its changes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from accel_bench.errors import PluginError, ScenarioError
from accel_bench.plugins.doors import find_entry
from accel_bench.plugins.manager import is_tracker, load_class
from accel_bench.plugins.registry import find
from accel_bench.scenario.draft import Draft, Setting
from accel_bench.scenario.sweep import Choices
from accel_bench.scenario.uses import Use

AXES = "accel_bench.axes"
"""Group of the entry point `family`, a function of a draft and a family of the model catalog.

It removes the file's model, and returns the settings that sweep over the family.
"""


@dataclass(frozen=True)
class PlanRequest:
    """Request to the planner: changes of a scenario file, and limits, from the command line."""

    plugins: tuple[str, ...] = ()
    """Stacks to add: a plugin's name, or several joined by `+`."""

    trackers: tuple[str, ...] = ()
    """Names of trackers to add to the file's trackers."""

    only: tuple[str, ...] = ()
    """Stacks to run besides the baseline: STACK in every scenario, or SCENARIO/STACK in one; empty
    runs all."""

    tags: tuple[str, ...] = ()
    """Tags of the sweep points to run, with `*` for any letters; empty runs all."""

    point: str = ""
    """Name of the only sweep point to plan, as in `Experiment.point`; empty for all."""

    reference_point: str = ""
    """Tag of the sweep point with which other points are compared; empty takes the first."""

    overrides: tuple[tuple[str, Any], ...] = ()
    """Dotted keys of changed settings, with their values."""

    seeds: int = 0
    """Number of seeds of weights and data to repeat every experiment with; 0 for the file's own."""

    family: str = ""
    """Family of the model catalog whose models all run in place of `model.id`; empty for none."""

    no_baseline: bool = False

    sections: tuple[str, ...] = ()
    """Names of further report sections, which distributions add by entry points."""

    race: bool = False
    """True to drop stacks that are surely not the best from later rounds."""

    allow_environment: bool = False
    """True to let the scenario set any environment variable."""

    trust_remote_code: bool = False
    """True to let models run code of their own."""

    observers: tuple[Use, ...] = ()
    """Plugins that observe steps of every run after its measured window."""

    max_runs: int = 1000

    force: bool = False
    """True to plan experiments that need more memory than the machine has."""

    oversubscribe: bool = False
    """True to plan more processes than cores."""

    choices: Choices = field(default_factory=dict)
    """Sizes that replace `auto`, by sweep point and key."""

    stand_ins: bool = False
    """True to plan an `auto` without a size by a placeholder, with a notice; False to raise."""

    build_environments: bool = True
    """True to build missing environments of the scenario, which takes minutes."""

    notify: Callable[[str], object] = print
    """Function that is called with a line of text before minutes of work."""

    def stacks_of(self, scenario: str) -> tuple[str, ...]:
        """Return the names of the stacks in `only` that apply to a scenario."""
        split = (name.rpartition("/") for name in self.only)
        return tuple(stack for own, _, stack in split if own in ("", scenario))

    def leaves_out(self, scenario: str) -> bool:
        """Return whether `only` names stacks, but no stack of this scenario."""
        return bool(self.only) and not self.stacks_of(scenario)


def split_trackers(plugins: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of `--plugin` that are no trackers, and the names that are trackers."""
    trackers: list[str] = []
    for name in plugins:
        with suppress(PluginError):  # what is wrong with it is said where its stack is made
            trackers += [name] if is_tracker(load_class(name)) else []
    return tuple(name for name in plugins if name not in trackers), tuple(trackers)


def requested_draft(draft: Draft, request: PlanRequest) -> Draft:
    """Return the draft with the stacks, settings, trackers and sweeps of the command line."""
    draft = copy.deepcopy(draft)
    for stack in request.plugins:
        add_stack(draft, stack)
    draft.override(request.overrides)
    _add_trackers(draft, request.trackers)
    axes = _sweep_family(draft, request.family) if request.family else []
    axes += _sweep_seeds(draft, request, axes) if request.seeds else []
    return draft.with_values(axes)


def add_stack(draft: Draft, stack: str) -> None:
    """Add a stack of plugins, joined by `+`, to the draft, and a baseline if it has no stacks."""
    names = stack.split("+")
    for name in names:
        find(name)
    stacks = draft.data.setdefault("stacks", {"baseline": {"use": []}})
    if not isinstance(stacks, dict):
        return
    if stacks.get(stack, {"use": names}) != {"use": names}:
        raise ScenarioError(
            f"{draft.where(('stacks', stack))}: the file has a stack {stack!r} of its own, so "
            f"--plugin {stack} cannot add one; --only {stack} runs it"
        )
    stacks[stack] = {"use": names}
    draft.places["stacks", stack] = f"--plugin {stack}"


def _add_trackers(draft: Draft, names: Iterable[str]) -> None:
    """Add the trackers of the command line to the file's trackers."""
    for name in names:
        listed = draft.data.setdefault("trackers", [])
        if not isinstance(listed, list):
            return
        written = [use.get("use") if isinstance(use, dict) else use for use in listed]
        if name not in written:
            draft.places["trackers", len(listed)] = f"--plugin {name}"
            listed.append(name)


def _refuse_zip(draft: Draft, option: str, axes: Sequence[Setting] = ()) -> None:
    """Raise ScenarioError if the file or `axes` zips swept keys, since `option` cannot join a
    zip."""
    places = [place for key, _, place in axes if key.startswith("zip.")]
    if draft.data.get("zip") is not None:
        places.append(draft.where(("zip",)))
    if places:
        raise ScenarioError(f"{places[-1]}: {option} cannot be added to a zip")


def _sweep_seeds(draft: Draft, request: PlanRequest, axes: Sequence[Setting]) -> list[Setting]:
    """Return the settings that sweep over seeds of weights and data together (`--seeds`). The seeds
    count up from the file's seeds, which are removed from the draft."""
    # Before a list of them is made.
    refuse_too_many(str(draft.data.get("name")), request.seeds, request.max_runs)
    _refuse_zip(draft, "--seeds", axes)
    seeds = []
    for slot in ("train", "data"):
        settings = draft.data.get(slot)
        first = settings.pop("seed", 0) if isinstance(settings, dict) else 0
        if not isinstance(first, int):
            raise ScenarioError(f"{draft.where((slot, 'seed'))}: {slot}.seed is no whole number")
        values = list(range(first, first + request.seeds))
        seeds.append((f"zip.{slot}.seed", values, f"--seeds {request.seeds}"))
    return seeds


def _sweep_family(draft: Draft, family: str) -> list[Setting]:
    """Return the settings that sweep over the catalog models of a family (`--family`), in place of
    the file's model."""
    entry = find_entry(AXES, "axis", "family")
    with entry.blamed():
        axes: list[Setting] = entry.load()(draft, family)
    _refuse_zip(draft, "--family")
    return axes


def refuse_too_many(
    scenario: str,
    runs: int,
    max_runs: int,
    sweep: Mapping[str, Sequence[Any]] = MappingProxyType({}),
) -> None:
    """Raise ScenarioError, with advice for a smaller sweep, for more runs than `max_runs`."""
    if runs <= max_runs:
        return
    several = sorted((len(values), key) for key, values in sweep.items() if len(values) > 1)
    within = (key for number, key in several if runs / number <= max_runs)
    how = "sweep over less"
    if key := next(within, ""):
        part = json.dumps([sweep[key][0]])
        how = f"run a part of it, such as --set 'sweep.{key}={part}' ({runs // len(sweep[key]):,})"
    raise ScenarioError(
        f"scenario {scenario!r} asks for {runs:,} runs, more than --max-runs {max_runs:,}; "
        f"{how}, or raise the limit"
    )

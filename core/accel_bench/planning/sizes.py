"""Entry points that determine a size given as `auto` in a scenario from data and memory.

A distribution adds an entry point to the group `accel_bench.sizes`, named by the dotted key. It is
a function of a `Sizing`, and returns the size and a sentence with the reason, or None if it would
have to start processes and may not. It raises ScenarioError if there is no such size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from accel_bench.errors import ScenarioError
from accel_bench.machine.info import Machine
from accel_bench.planning.plan import Plan, Planned, PlanRequest, make_plan
from accel_bench.plugins.doors import DoorEntry, find_entries
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.sweep import STAND_INS, Choice

GROUP = "accel_bench.sizes"
"""Group of the entry points that determine sizes."""

Settings: TypeAlias = tuple[tuple[str, Any], ...]
"""Dotted keys with their values."""


@dataclass(frozen=True)
class Sizing:
    """Inputs from which a size of one sweep point is determined."""

    draft: Draft
    """Scenario file before the changes of the request."""

    machine: Machine
    """The machine on which the experiments will run."""

    request: PlanRequest
    """Request of the command line, such as `--set` and `--only`."""

    work_out: bool
    """True if processes may be started to determine sizes."""

    rough: Plan
    """Plan with placeholders for the sizes to be determined."""

    point: str
    """Name of the sweep point, as in `Experiment.point`."""

    found: Mapping[str, Choice] = field(default_factory=dict)
    """Known sizes of the sweep point, by key."""

    def stacks(self, chosen: Sequence[Choice] = (), settings: Settings = ()) -> list[Planned]:
        """Return the experiments of the sweep point that can run here, with the known sizes, the
        sizes in `chosen` and the further `settings`."""
        choices = {self.point: {**self.found, **{choice.key: choice for choice in chosen}}}
        overrides = (*self.request.overrides, *settings)
        request = replace(self.request, choices=choices, stand_ins=True, overrides=overrides)
        return make_plan(self.draft, self.machine, replace(request, point=self.point)).runnable


def plan_with_sizes(
    draft: Draft, machine: Machine, request: PlanRequest, work_out: bool = True
) -> Plan:
    """Return the plan with a size for every `auto`.

    Without `work_out`, a size that needs processes stays a placeholder. Raises ScenarioError if a
    size cannot be determined.
    """
    rough = make_plan(draft, machine, replace(request, stand_ins=True))
    if not rough.open_sizes:
        return rough
    runnable = {planned.experiment.point for planned in rough.runnable}
    choices = {
        point: _choices(Sizing(draft, machine, request, work_out, rough, point))
        for point in rough.open_sizes
        if point in runnable
    }
    # What is skipped with its stand-in is not worked out.
    stand_ins = not work_out or len(choices) < len(rough.open_sizes)
    return make_plan(draft, machine, replace(request, choices=choices, stand_ins=stand_ins))


def _choices(sizing: Sizing) -> Mapping[str, Choice]:
    """Return the sizes of a sweep point by key, up to the first size that is not known yet."""
    choices: dict[str, Choice] = {}
    for key in filter(sizing.rough.open_sizes[sizing.point].__contains__, STAND_INS):
        if (size := _determined_by(_entry_of(key), replace(sizing, found=choices))) is None:
            break
        value, because = size
        choices = {**choices, key: Choice(key=key, value=value, because=because)}
    return choices


def _entry_of(key: str) -> DoorEntry:
    """Return the entry point for the size of a key. Raises ScenarioError unless it is unique."""
    entries = find_entries(GROUP, "size")
    if entry := entries.get(key):
        return entry
    rivals = [name for name in entries if name.endswith(f":{key}")]
    if not rivals:
        raise ScenarioError(f"{key}: auto: nothing that is installed works it out; give a number")
    raise ScenarioError(
        f"{key}: auto: {', '.join(rivals)} would work it out; give a number, or leave one of them "
        "installed"
    )


def _determined_by(entry: DoorEntry, sizing: Sizing) -> tuple[int, str] | None:
    """Return a size and its reason, or None if unknown yet; other values raise PluginError."""
    function = entry.load()
    with entry.blamed():
        size = function(sizing)
    match size:
        case None:
            return None
        case (int(value), str(because)) if value >= 1 and value is not True:
            return value, because
    raise entry.broken(f"it returned {size!r}, and not a size from 1 and a sentence, or None")

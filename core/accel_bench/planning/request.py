"""What the command line asks of a scenario: its changes, and the stacks and points to plan."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from accel_bench.analysis.statistics.verdict import MOST_ROUNDS
from accel_bench.errors import ScenarioError, did_you_mean
from accel_bench.planning.defaults import add_stack, sweep_family, sweep_seeds
from accel_bench.planning.environments import with_swept_environments
from accel_bench.planning.resolve import ResolvedFile, resolve
from accel_bench.planning.trackers import add_trackers
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.models import ScenarioFile
from accel_bench.scenario.sweep import Choices, Point, count_points
from accel_bench.scenario.uses import Use


@dataclass(frozen=True)
class PlanRequest:
    """Changes of the command line to the file."""

    plugins: tuple[str, ...] = ()
    """Stacks to add: a plugin's name, or several joined by `+`."""

    trackers: tuple[str, ...] = ()
    """Trackers to add to those of the file."""

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

    family: str = ""
    """Run every model of the catalog of this family, in the place of `model.id`; empty does not."""

    no_baseline: bool = False

    sections: tuple[str, ...] = ()
    """Sections of other distributions that the comparison shows."""

    race: bool = False
    """Run no more rounds of stacks that are surely not the best."""

    allow_environment: bool = False
    """Let the scenario set any environment variable."""

    trust_remote_code: bool = False
    """Let models bring code of their own."""

    observers: tuple[Use, ...] = ()
    """Plugins that observe steps of every run after its measured window."""

    max_runs: int = 1000

    force: bool = False
    """Plan what needs more memory than the machine has."""

    oversubscribe: bool = False
    """Plan more processes than cores."""

    choices: Choices = field(default_factory=dict)
    """Sizes that were worked out where the scenario says `auto`."""

    stand_ins: bool = False
    """Plan with a stand-in where such a size is not worked out, and say so; else refuse that."""

    build_environments: bool = True
    """Build the scenario's environments that are missing, which takes minutes."""

    notify: Callable[[str], object] = print
    """Takes a line before something that takes minutes."""


def resolve_request(draft: Draft, request: PlanRequest) -> ResolvedFile:
    """Return the file with the changes of the command line. Raises ScenarioError."""
    file = resolve(_requested(draft, request), request.allow_environment)
    return with_swept_environments(file)


def with_chosen_stacks(file: ResolvedFile, request: PlanRequest) -> ResolvedFile:
    """Return the file with the stacks that the request names. Raises ScenarioError.

    The runs are counted before any point is made.
    """
    stacks = {name: file.stacks[name] for name in choose(file.scenario, request)}
    file = replace(file, scenario=file.scenario.model_copy(update={"stacks": stacks}))
    rounds = file.scenario.measure.rounds
    runs = count_points(file.scenario) * (MOST_ROUNDS if rounds == "auto" else rounds)
    _refuse_too_many(file.scenario.name, runs, request.max_runs)
    return file


def chosen_points(file: ResolvedFile, request: PlanRequest, device: str) -> list[Point]:
    """Return the points of the stacks and tags that the request names. Raises ScenarioError."""
    points = list(with_chosen_stacks(file, request).points(device))
    known = {point.tag for point in points}
    for tag in request.tags:
        if not any(fnmatchcase(name, tag) for name in known):
            _refuse_unknown_tag(tag, known)
    tags = request.tags or ("*",)
    points = [point for point in points if any(fnmatchcase(point.tag, tag) for tag in tags)]
    if request.reference_point:
        _refuse_unknown_tag(request.reference_point, {point.tag for point in points})
    return points


def _requested(draft: Draft, request: PlanRequest) -> Draft:
    """Return the draft with the stacks, overrides and seeds of the command line."""
    draft = copy.deepcopy(draft)
    for stack in request.plugins:
        add_stack(draft, stack)
    draft.override(request.overrides)
    add_trackers(draft, request.trackers)
    if request.family:
        sweep_family(draft, request.family)
    if request.seeds:
        # Before a list of them is made.
        _refuse_too_many(str(draft.get("name")), request.seeds, request.max_runs)
        sweep_seeds(draft, request.seeds)
    return draft


def choose(file: ScenarioFile, request: PlanRequest) -> list[str]:
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


def _refuse_unknown_tag(tag: str, known: Collection[str]) -> None:
    if tag not in known:
        hint = did_you_mean(tag, filter(None, known))
        raise ScenarioError(f"no point of the sweep has the tag {tag!r}{hint}")


def _refuse_too_many(scenario: str, runs: int, max_runs: int) -> None:
    if runs > max_runs:
        raise ScenarioError(
            f"scenario {scenario!r} asks for {runs:,} runs, more than --max-runs {max_runs:,}; "
            "sweep over less, or raise the limit"
        )

"""Activation of plugins, trackers and Python environments for planned experiments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from accel_bench.documents.canonical import canonical_json
from accel_bench.errors import PluginError, ScenarioError, did_you_mean
from accel_bench.planning.resolve import ResolvedFile
from accel_bench.plugins.active import ActivePlugin, ActivePlugins, attribute_errors_to, task_of
from accel_bench.plugins.doors import find_entry
from accel_bench.plugins.interpreter import Interpreter
from accel_bench.plugins.manager import TRACKING, activate, activate_use, is_tracker
from accel_bench.plugins.registry import find, installed, missing_extra, missing_extras
from accel_bench.scenario.models import Scenario
from accel_bench.scenario.settings import PythonEnvironment
from accel_bench.scenario.sweep import EXCLUDED, Point
from accel_bench.scenario.uses import NO_PLUGIN, TOKENS, Use, slot_defaults

ENVIRONMENTS = "accel_bench.environments"
"""Group of the entry point `python`, which finds and builds Python environments.

It is a function of an environment's name and settings, the plugins used there, and a function that
announces a build, or None to build nothing. It returns an `Interpreter`, or None.
"""


@dataclass(frozen=True)
class Environment:
    """Python environment of a scenario, for experiments with `resources.environment`."""

    name: str
    settings: PythonEnvironment

    interpreter: Interpreter | None
    """Interpreter of the environment; null if it is not built and may not be built."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Reason why no experiment can run in the environment; empty if it is built."""
        if self.interpreter is None:
            return (f"the environment {self.name!r} is not built yet; a run builds it",)
        return ()


class ActivatedPoint(NamedTuple):
    """Stack at a sweep point, with its active plugins and the settings that they determine."""

    point: Point

    active: ActivePlugins
    """Active plugins of the point: all of its plugins that are installed."""

    environment: Environment | None
    """Python environment of the point; null for the environment of this program."""

    skipped: tuple[str, ...]
    """Reasons to skip the point: exclusions, missing plugins, an environment that is not built."""


def activate_points(
    file: ResolvedFile, points: Iterable[Point], environments: Mapping[str, Environment]
) -> Iterator[ActivatedPoint]:
    """Yield the points with their active plugins, and the settings that plugins determine.

    Points with the same plugins, options and environment share the active plugins. Raises
    PluginError for an unfit plugin, and ScenarioError for settings that contradict the plugins.
    """
    made: dict[str, ActivePlugins] = {}
    for resolved in points:
        point = resolved.model_copy(update={"scenario": with_gpu_metrics(resolved.scenario)})
        environment = environments.get(point.scenario.resources.environment)
        missing = missing_extras(use.use for use in point.stack.uses)
        key = _plugins_of(point)
        if key not in made:
            active = _activate_present(file, point, missing)
            if environment and (there := environment.interpreter):
                active = ActivePlugins([plugin.run_by(there) for plugin in active.plugins])
            made[key] = active
        active = made[key]
        if not (point.provisional and missing):  # What is missing may make the groups.
            point = _with_groups(file, point, active)
        reasons = tuple(f"{EXCLUDED}{reason}" for reason in point.excluded)
        reasons = reasons or tuple(missing.values()) or (environment.missing if environment else ())
        yield ActivatedPoint(_with_counts(point, active), active, environment, reasons)


def find_environments(
    file: ResolvedFile, points: Sequence[Point], notify: Callable[[str], object] | None
) -> Mapping[str, Environment]:
    """Return the environments of the points, by name.

    `notify` is called with a line before an environment is built, which takes minutes. Without it
    (None) no environment is built. Raises ScenarioError for an environment that is unknown, not
    allowed, cannot be built, or cannot run this version's jobs.
    """
    names = dict.fromkeys(point.scenario.resources.environment for point in points)
    uses = sorted({use.use for point in points for use in point.uses} - {NO_PLUGIN})
    return {name: _find_environment(file, name, uses, notify) for name in names if name}


def _find_environment(
    file: ResolvedFile, name: str, uses: Sequence[str], notify: Callable[[str], object] | None
) -> Environment:
    known = file.scenario.environments
    if name not in known:
        hint = did_you_mean(name, known) if known else "; `environments` has none"
        where = file.where(("resources", "environment"))
        raise ScenarioError(f"{where}: no environment is called {name!r}{hint}")
    where = file.where(("environments", name))
    if not file.allow_environment:
        raise ScenarioError(
            f"{where}: an environment runs code of its author's choice; --allow-env lets this "
            "scenario name one"
        )
    entry = find_entry(ENVIRONMENTS, "finder of environments", "python")
    try:
        with entry.blamed():
            interpreter = entry.load()(name, known[name], uses, notify)
    except ScenarioError as error:
        raise ScenarioError(f"{where}: {name}: {error}") from error
    return Environment(name, known[name], interpreter)


def _plugins_of(point: Point) -> str:
    """Return a key that is equal for points with the same plugins, options and environment."""
    scenario = point.scenario
    uses = [[use.use, use.options] for use in point.uses]
    checked = [scenario.mode, bool(scenario.data.held_out)]  # beside the plugins themselves
    return canonical_json([len(point.stack.uses), uses, checked, scenario.resources.environment])


def _activate_present(file: ResolvedFile, point: Point, missing: Collection[str]) -> ActivePlugins:
    """Activate a point's plugins except `missing`; an error in a ladder's stack names the stack."""
    stack = point.stack
    present = tuple(use for use in stack.uses if use.use not in missing)
    from_ladder = stack.ladder is not None and any(stack.ladder.holds)
    # Numbers of uses are places in the file only where every one of them is here.
    as_written = not from_ladder and len(file.stacks[stack.name].use) == len(present)
    try:
        return activate(
            point.scenario,
            stack.model_copy(update={"uses": present}),
            where=file.where if as_written else None,
        )
    except PluginError as error:
        if not from_ladder:
            raise
        where = file.where(("stacks", stack.name))
        raise PluginError(f"{where}: the ladder's stack {stack.name!r}: {error}") from error


def with_gpu_metrics(scenario: Scenario) -> Scenario:
    """Return the scenario with installed GPU metrics plugins, if it runs on CUDA and names none."""
    if scenario.resources.device != "cuda" or "metrics" in scenario.model_fields_set:
        return scenario
    here = {plugin.use for plugin in installed()}
    added = tuple(Use(use=name) for name in slot_defaults().gpu_metrics if name in here)
    return scenario.model_copy(update={"metrics": (*scenario.metrics, *added)})


def _with_groups(file: ResolvedFile, point: Point, active: ActivePlugins) -> Point:
    """Return the point with the parallel plugin's data-parallel groups, and batch sizes for them.

    Raises ScenarioError for a different number in the scenario, or for unfit batch sizes.
    """
    plugin, scenario = active.answers("parallelize_model"), point.scenario
    if plugin is not None:
        groups = _groups(plugin, point)
    else:
        groups = scenario.world_size if point.provisional else scenario.data_parallel
    return point if groups == scenario.data_parallel else file.with_data_parallel(point, groups)


def _groups(plugin: ActivePlugin, point: Point) -> int:
    """Return into how many data-parallel groups `plugin` divides a point's ranks."""
    scenario = point.scenario
    with attribute_errors_to(plugin, "data_parallel"):
        groups = int(plugin.instance.data_parallel(scenario))
    given = None if point.provisional else scenario.resources.data_parallel
    if given not in (None, groups):
        raise ScenarioError(
            f"resources.data_parallel is {given}, and {plugin.name} makes "
            f"{groups} of {scenario.world_size} devices; leave it out"
        )
    return groups


def _with_counts(point: Point, active: ActivePlugins) -> Point:
    """Return the point with the noun for what its task counts, such as `images`. Raises
    ScenarioError if the scenario states another noun."""
    scenario, task = point.scenario, task_of(active)
    given = scenario.task.counts
    if task is None:
        return point
    if given not in (None, task.counts):
        raise ScenarioError(
            f"task.counts is {given}, and {scenario.task.use} counts {task.counts}; leave it out"
        )
    named = None if task.counts == TOKENS else task.counts
    use = scenario.task.model_copy(update={"counts": named})
    return point.model_copy(update={"scenario": scenario.model_copy(update={"task": use})})


def make_trackers(
    file: ResolvedFile, named: Collection[str]
) -> tuple[ActivePlugins | None, tuple[str, ...]]:
    """Return the active trackers, or None without any, and the reasons why others are left out.

    A tracker without its library is left out, unless it is `named` on the command line. Raises
    PluginError for such a tracker, an unknown tracker, and a plugin that is no tracker.
    """
    uses = file.scenario.trackers
    names = [use.use for use in uses]
    for name in names:
        if names.count(name) > 1:
            raise ScenarioError(
                f"{file.where(('trackers',))}: the tracker {name!r} stands there twice; once is "
                "enough"
            )
    active: list[ActivePlugin] = []
    left_out: list[str] = []
    for number, use in enumerate(uses):
        made, reason = _make_tracker(file, number, use)
        if made is not None:
            active.append(made)
        elif use.use in named:
            raise PluginError(f"tracker {use.use!r} cannot be used here: {reason}")
        else:
            left_out.append(f"tracker {use.use!r} is left out: {reason}")
    return (ActivePlugins(active) if active else None), tuple(left_out)


def _make_tracker(file: ResolvedFile, number: int, use: Use) -> tuple[ActivePlugin | None, str]:
    """Return tracker number `number` of the file, or None, and the reason why it is unusable."""
    place = ("trackers", number)
    if reason := missing_extra(use.use):
        return None, reason
    made = activate_use(use, "trackers", place, file.where)
    if not is_tracker(type(made.instance)):
        raise PluginError(
            f"{file.where(place)}: plugin {use.use!r} is no tracker: it has no {TRACKING}"
        )
    unmet = find(use.use).unmet(made.instance.requires)
    return (None, "; ".join(unmet)) if unmet else (made, "")

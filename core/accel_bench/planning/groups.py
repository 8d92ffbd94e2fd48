"""Activate the plugins of a point, and size its batches by the groups of ranks that they make."""

from __future__ import annotations

from collections.abc import Iterable

from accel_bench.errors import PluginError, ScenarioError
from accel_bench.planning.resolve import ResolvedFile
from accel_bench.plugins.active import ActivePlugin, ActivePlugins, attribute_errors_to, task_of
from accel_bench.plugins.manager import activate
from accel_bench.plugins.registry import missing_extra
from accel_bench.scenario.models import Scenario, Stack
from accel_bench.scenario.sweep import Point
from accel_bench.scenario.uses import TOKENS, Use


def with_groups(file: ResolvedFile, point: Point, active: ActivePlugins) -> Point:
    """Return the point with the groups of ranks that its plugin makes, and batches by them.

    Raises ScenarioError where the scenario gives another number, and where the batch does not fit.
    """
    if point.provisional and missing_extras(point.stack.uses):
        return point  # What is missing may make the groups.
    plugin, scenario = active.answers("parallelize_model"), point.scenario
    if plugin is not None:
        groups = _groups(plugin, point)
    else:
        groups = scenario.world_size if point.provisional else scenario.data_parallel
    return point if groups == scenario.data_parallel else file.with_data_parallel(point, groups)


def with_counts(scenario: Scenario, active: ActivePlugins) -> Scenario:
    """Return the scenario with what its task counts. Raises ScenarioError for another one."""
    task = task_of(active)
    given = scenario.task.counts
    if task is None:
        return scenario
    if given not in (None, task.counts):
        raise ScenarioError(
            f"task.counts is {given}, and {scenario.task.use} counts {task.counts}; leave it out"
        )
    named = None if task.counts == TOKENS else task.counts
    use = scenario.task.model_copy(update={"counts": named})
    return scenario.model_copy(update={"task": use})


def _groups(plugin: ActivePlugin, point: Point) -> int:
    """Return how many groups of ranks take batches of their own."""
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


def activate_present(file: ResolvedFile, scenario: Scenario, stack: Stack) -> ActivePlugins:
    """Activate the plugins that are installed; an error in a ladder's stack names its item."""
    missing = missing_extras(stack.uses)
    present = tuple(use for use in stack.uses if use.use not in missing)
    stack = stack.model_copy(update={"uses": present})
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


def missing_extras(uses: Iterable[Use]) -> dict[str, str]:
    """Return how to install each plugin that an extra brings and that is not installed."""
    reasons = {use.use: missing_extra(use.use) for use in uses}
    return {name: reason for name, reason in reasons.items() if reason}

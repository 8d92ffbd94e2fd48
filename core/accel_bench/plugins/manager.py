"""Activation of plugins, only when a scenario names them.

`activate` imports the named plugins, validates their options and returns the `ActivePlugins` of one
run, which call hooks in written order and attribute errors to the plugin that raised them.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Any

from accel_bench.documents.canonical import canonical_json
from accel_bench.documents.load import Location
from accel_bench.documents.validate import validate
from accel_bench.errors import HookError, PluginError
from accel_bench.hookspecs import OF_EVALUATION, OF_SIZES, ONE_ANSWER
from accel_bench.plugin import Plugin
from accel_bench.plugins.active import OBSERVERS, ActivePlugin, ActivePlugins, problem_of
from accel_bench.plugins.loading import (
    import_plugin,
    limit_seconds,
    restored_environment,
    time_limit,
)
from accel_bench.plugins.registry import find
from accel_bench.plugins.shipped import is_shipped
from accel_bench.plugins.trial import note_call, run_in_trial
from accel_bench.plugins.validation import marked_methods, wrong_declarations
from accel_bench.scenario.models import Scenario, Stack, Work
from accel_bench.scenario.uses import NO_PLUGIN, Use
from accel_bench.task import Task

TRACKING = "record_result"
"""Name of the hook that makes a plugin a tracker."""

TRIAL_SECONDS = 60.0
"""Time limit in seconds of a trial, within which a plugin's call may take `limit_seconds()`."""

OBSERVES = "observe_steps"
OF_OBSERVERS = frozenset({OBSERVES, "finish_metrics", "close_run"})
"""Hooks, all after the window, that a plugin outside of the experiment may implement."""


def load_class(name: str, allow_torch: bool = False) -> type[Plugin[Any]]:
    """Return the imported class of a plugin; without `allow_torch` its import must not bring torch.
    Raises PluginError with plugin, distribution and reason if the plugin cannot be used."""
    plugin = find(name)
    label = f"plugin {name!r} ({plugin.distribution} {plugin.version})"
    if problem := plugin.wrong_contract:
        raise PluginError(f"{label} is {problem}")
    allow_torch = allow_torch or "torch" in sys.modules
    probe = not allow_torch and not is_shipped(plugin.distribution)
    kind = import_plugin(plugin.entry, label, allow_torch, probe)
    if wrong := wrong_declarations(kind):
        raise PluginError(f"{label} is broken: {'; '.join(wrong)}")
    return kind


def activate(
    scenario: Scenario,
    stack: Stack,
    *,
    allow_torch: bool = False,
    where: Callable[[Location], str] | None = None,
    on_plugin: Callable[[int], None] = lambda number: None,
) -> ActivePlugins:
    """Return the active plugins of a scenario and a stack, imported and with validated options.

    `where` returns the location of a setting in the file, for messages. `on_plugin` is called with
    the number, from 1, of each plugin before its import. Raises PluginError for an unknown, broken
    or repeated plugin, bad options, two claims of a hook, a conflict or a wrong order, and unless
    `allow_torch` for a plugin whose import also imports torch.
    """
    numbers = itertools.count(1)

    def use_plugin(use: Use, slot: str | None, *location: str | int) -> ActivePlugin:
        on_plugin(next(numbers))

        def label(path: Location) -> str:
            text = f"plugin {use.use!r}" + (f" (as {slot})" if slot else "")
            return f"{where((*location, *path))}: {text}" if where else text

        return _use_plugin(use, slot, allow_torch, label)

    plugins = [
        use_plugin(use, None, "stacks", stack.name, "use", number)
        for number, use in enumerate(stack.uses)
    ]
    _check_stack(stack, plugins)
    plugins += [use_plugin(use, slot, slot) for slot, use in _filled_slots(scenario)]
    plugins += [
        use_plugin(use, "metrics", "metrics", number) for number, use in enumerate(scenario.metrics)
    ]
    for plugin in plugins:
        _refuse_tracker(plugin)
    active = ActivePlugins(plugins)
    _check_slots(scenario, active)
    return active


def is_tracker(kind: type[Plugin[Any]]) -> bool:
    """Return whether a plugin is a tracker, which logs results."""
    return TRACKING in dict(marked_methods(kind))


def _refuse_tracker(plugin: ActivePlugin) -> None:
    """Raise PluginError for a tracker in a stack or slot, where it would change experiment ids."""
    if is_tracker(type(plugin.instance)):
        raise PluginError(
            f"plugin {plugin.name!r} is a tracker, and no part of what is measured; write "
            f"`trackers: [{plugin.name}]`, or --plugin {plugin.name}"
        )


def with_observers(active: ActivePlugins, uses: Sequence[Use]) -> ActivePlugins:
    """Return active plugins, extended by the plugins of `uses`, which observe steps after the
    window. Raises PluginError as `activate` does, and for a plugin that does more than observe
    steps."""

    def observer(use: Use) -> ActivePlugin:
        return _use_plugin(use, OBSERVERS, True, lambda place: f"plugin {use.use!r}")

    observers = [*map(observer, uses)]
    for plugin in observers:
        _refuse_participant(plugin)
    return ActivePlugins([*active.plugins, *observers]) if observers else active


def _refuse_participant(plugin: ActivePlugin) -> None:
    """Raise PluginError for a plugin that does more than observe, and so changes an experiment."""
    hooks = dict(marked_methods(type(plugin.instance))).keys()
    if OBSERVES not in hooks or hooks - OF_OBSERVERS:
        others = ", ".join(sorted(hooks - OF_OBSERVERS)) or f"no {OBSERVES}"
        raise PluginError(f"plugin {plugin.name!r} cannot only observe steps: it has {others}")


def _filled_slots(scenario: Scenario) -> Iterator[tuple[str, Use]]:
    """Yield each filled slot, such as `model`, with its `use`: the plugin's name and options.
    Raises PluginError for options without a plugin."""
    for slot in Work.SLOTS:
        use: Use = getattr(scenario, slot)
        if use.use != NO_PLUGIN:
            yield slot, use
        elif use.options:
            given = ", ".join(use.options)
            raise PluginError(f"{slot}: none has no option {given}; name a plugin with {slot}.use")


def activate_slot(work: Work, slot: str, where: Callable[[Location], str]) -> ActivePlugin:
    """Return the active plugin of one slot, such as `model`, of `work`. `where` is as for
    `activate`. Raises PluginError as `activate` does, and for an empty slot."""
    use = getattr(work, slot)
    if use.use == NO_PLUGIN:
        raise PluginError(f"{slot}: none cannot be run; name a plugin")
    return activate_use(use, slot, (slot,), where)


def activate_use(
    use: Use, slot: str, place: Location, where: Callable[[Location], str]
) -> ActivePlugin:
    """Return the active plugin of `use`, a plugin's name and options at `place` in the file. `slot`
    is the plugin's role, for messages, and `where` is as for `activate`. Raises PluginError as
    `activate` does, HookError if the plugin's code exits, as by `sys.exit`."""

    def label(path: Location) -> str:
        return f"{where((*place, *path))}: plugin {use.use!r} (as {slot})"

    try_apart([use], partial(_use_plugin, use, slot, False, str))
    return _use_plugin(use, slot, False, label)


def _use_plugin(
    use: Use, slot: str | None, allow_torch: bool, label: Callable[[Location], str]
) -> ActivePlugin:
    """Import the plugin that `use` names, check its options, and return it as an active plugin.
    `label` turns the path of an option into the beginning of an error message about it."""
    plugin = find(use.use)
    with restored_environment() as changed:
        kind = load_class(use.use, allow_torch)
        instance = _make(kind, use, slot, plugin.distribution, label)
    return ActivePlugin(instance, use.use, slot, plugin.distribution, tuple(changed))


def _make(
    kind: type[Plugin[Any]],
    use: Use,
    slot: str | None,
    distribution: str,
    label: Callable[[Location], str],
) -> Plugin[Any]:
    """Return an instance of the plugin class `kind` with the options of `use`, which are checked.
    `label` turns the path of an option into the beginning of an error message about it."""
    clash = type(use).owned_keys() & set(kind.Options.model_fields)
    if clash:
        raise PluginError(
            f"{label(())} ({distribution}) has options that belong to "
            f"the slot {slot or 'stack'!r}: {', '.join(sorted(clash))}"
        )
    hint = ""
    if slot == "model" and not use.options.keys() <= kind.Options.model_fields.keys():
        hint = "; a setting of the model's own configuration stands under model.overrides"
    note_call(use.use, distribution, "Options")
    options = validate(kind.Options, use.options, label, PluginError, hint)
    note_call(use.use, distribution, "__init__")
    try:
        with time_limit(limit_seconds()):
            return kind(options, use.use)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PluginError(
            f"{label(())} ({distribution}) cannot be made: {problem_of(error)}"
        ) from error


def _check_stack(stack: Stack, plugins: Sequence[ActivePlugin]) -> None:
    """Raise PluginError for a plugin used twice, a conflict, or an order that is not allowed."""
    names = [plugin.name for plugin in plugins]
    for plugin in plugins:
        if names.count(plugin.name) > 1:
            raise PluginError(f"stack {stack.name!r} uses {plugin.name!r} twice; once is enough")
        for other in plugin.instance.conflicts.intersection(names):
            raise PluginError(f"stack {stack.name!r}: {plugin.name!r} conflicts with {other!r}")
    ordered = _ordered(plugins)
    if ordered != names:
        raise PluginError(
            f"stack {stack.name!r}: the order {names} does not work; write {ordered} instead"
        )


def _ordered(plugins: Sequence[ActivePlugin]) -> list[str]:
    """Return the plugins' names in the order allowed by `after` and `before` that is nearest to the
    given order. Raises PluginError if no order is allowed."""
    names = [plugin.name for plugin in plugins]
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for plugin in plugins:
        sorter.add(plugin.name, *set(plugin.instance.after).intersection(names))
        for later in set(plugin.instance.before).intersection(names):
            sorter.add(later, plugin.name)
    try:
        sorter.prepare()
    except CycleError as error:
        stuck = ", ".join(name for name in names if name in error.args[1])
        raise PluginError(f"the plugins {stuck} each want to stand before the other") from None
    ordered: list[str] = []
    free: list[str] = []
    while sorter.is_active():
        free = sorted([*free, *sorter.get_ready()], key=names.index)
        ordered.append(free.pop(0))
        sorter.done(ordered[-1])
    return ordered


def _check_slots(scenario: Scenario, active: ActivePlugins) -> None:
    """Raise PluginError if no plugin implements the hooks of a slot, as with `data: lora`."""
    for plugin in active.plugins:
        if plugin.slot == "task" and not isinstance(plugin.instance, Task):
            raise PluginError(
                f"plugin {plugin.name!r} cannot be used as task: it is no accel_bench.Task"
            )
    for hook, slot in ONE_ANSWER.items():
        if slot is None or hook in OF_SIZES or active.answers(hook) is not None:
            continue
        use = getattr(scenario, slot)
        if hook in OF_EVALUATION:
            if scenario.data.held_out:
                raise PluginError(
                    f"data.held_out: plugin {use.use!r} holds no samples out: it has no {hook}"
                )
            continue
        if use.use != NO_PLUGIN:
            raise PluginError(f"plugin {use.use!r} cannot be used as {slot}: it has no {hook}")
        may_be_empty = {"adapter", "parallel", *(["optimizer"] if scenario.generates else [])}
        if slot not in may_be_empty:
            raise PluginError(f"{slot}: none cannot be run; name a plugin that has {hook}")


def try_apart(uses: Iterable[Use], work: Callable[[], object]) -> None:
    """Try the picklable function `work` in another process if `uses` name plugins of other authors
    that were not tried yet. Raises HookError for a plugin whose code ends that process, since it
    would end this program silently."""
    if "torch" in sys.modules:
        return
    by_text = {canonical_json(use.model_dump(mode="json")): use.use for use in uses}
    foreign = {name for name in {*by_text.values()} if _is_foreign(name)}
    untried = {text for text, name in by_text.items() if name in foreign} - _tried
    if not untried:
        return
    ending = run_in_trial(work, max(TRIAL_SECONDS, limit_seconds()))
    if ending and ending.how and any(ending.call):
        raise HookError(*ending.call, f"it ends the process ({ending.how})")
    _tried.update(untried)


_tried: set[str] = set()
"""Uses of other authors' plugins, as JSON, that were tried in another process."""


def _is_foreign(name: str) -> bool:
    with contextlib.suppress(PluginError):
        return not is_shipped(find(name).distribution)
    return False

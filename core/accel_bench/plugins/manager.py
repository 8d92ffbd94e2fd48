"""Plugins are activated only when a scenario names them.

`activate` imports the named ones, validates their options and returns the `ActivePlugins` of one
run, which call hooks in written order and attribute errors to the plugin that raised them.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

import pluggy

from accel_bench import hookspecs
from accel_bench.documents.load import Location
from accel_bench.documents.validate import validate
from accel_bench.errors import AccelBenchError, HookError, PluginError
from accel_bench.hookspecs import LIMITED, OF_EVALUATION, OF_SIZES, ONE_ANSWER
from accel_bench.machine.provenance import distribution_version
from accel_bench.plugin import PROJECT, Plugin
from accel_bench.plugins.forked import ending_in_copy, note_call
from accel_bench.plugins.loading import (
    TookTooLongError,
    import_plugin,
    limit_seconds,
    restored_environment,
    time_limit,
)
from accel_bench.plugins.registry import find
from accel_bench.plugins.shipped import is_shipped
from accel_bench.plugins.validation import (
    marked_methods,
    validation_problems,
    wrong_declarations,
)
from accel_bench.result import PluginVersion
from accel_bench.run_context import Run
from accel_bench.scenario.models import Scenario, Stack, Work
from accel_bench.scenario.uses import NO_PLUGIN, Use
from accel_bench.task import Task

TRACKING = "record_result"
"""Hook of trackers."""

LOSS_TOLERANCE, UPDATE_TOLERANCE = "allowed_loss_difference", "allowed_update_difference"
OUTPUT_TOLERANCE = "allowed_output_difference"


@dataclass(frozen=True)
class ActivePlugin:
    """One active use: an instance, and where it came from."""

    instance: Plugin[Any]
    """The plugin with its options."""

    name: str
    """What `use` calls it."""

    slot: str | None
    """The slot that it fills; None for a plugin of the stack."""

    distribution: str

    set_at_import: tuple[str, ...] = ()
    """Environment variables that its import or its making changed, which was undone."""

    installed_version: str | None = None
    """Version of the distribution where the job runs; null for the one that is installed here."""

    @property
    def version(self) -> PluginVersion:
        """Name, distribution and version, for the record."""
        version = self.installed_version or distribution_version(self.distribution)
        return PluginVersion(name=self.name, distribution=self.distribution, version=version)


class _Hooks(pluggy.PluginManager):
    """Looks for hooks among the methods that are marked, not at every attribute of a plugin."""

    marked: frozenset[str] = frozenset()

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        """Return the marks of an attribute; None where it is no hook."""
        return super().parse_hookimpl_opts(plugin, name) if name in self.marked else None


class ActivePlugins:
    """The plugins of one run, in the order in which their hooks are called."""

    def __init__(self, plugins: Sequence[ActivePlugin]) -> None:
        self.plugins = tuple(plugins)
        self._manager = _Hooks(PROJECT)
        self._manager.add_hookspecs(hookspecs)
        for number, plugin in enumerate(self.plugins):
            self._register(plugin, f"{number}:{plugin.name}")
        self._answers = {hook: self._one_answer(hook) for hook in ONE_ANSWER}
        self.loss_tolerances = _tolerances(self.plugins, LOSS_TOLERANCE)
        self.update_tolerances = _tolerances(self.plugins, UPDATE_TOLERANCE)
        self.output_tolerances = _tolerances(self.plugins, OUTPUT_TOLERANCE)

    def call_all(self, hook: str, **arguments: Any) -> Iterator[tuple[ActivePlugin, Any]]:
        """Call a hook of every plugin that implements it, in order; yield plugin and answer.

        Raises HookError that names the plugin when it raises anything that is not ours.
        """
        functions = self._functions(hook)
        for plugin in self.plugins:
            if id(plugin.instance) in functions:
                yield plugin, self.call_plugin(plugin, hook, **arguments)

    def call_lists(self, hook: str, **arguments: Any) -> Iterator[tuple[ActivePlugin, list[Any]]]:
        """Like `call_all`, for hooks that return an iterable or None: yield what is in it.

        Raises HookError for anything else, and for an iterable that raises on its way.
        """
        for plugin, found in self.call_all(hook, **arguments):
            if isinstance(found, str | bytes) or not isinstance(found, Iterable | None):
                raise wrong_answer(plugin, hook, "a list", found)
            with _calling(plugin, hook, arguments):
                items = [] if found is None else list(found)
            yield plugin, items

    def call_plugin(self, plugin: ActivePlugin, hook: str, **arguments: Any) -> Any:
        """Call a hook of one plugin; None when it does not implement it."""
        found = self._functions(hook).get(id(plugin.instance))
        if found is None:
            return None
        with _calling(plugin, hook, arguments):
            return found.function(*(arguments[name] for name in found.argnames))

    def call_one(self, hook: str, **arguments: Any) -> Any:
        """Call a one-answer hook of the plugin that answers it; None when there is none."""
        plugin = self._answers[hook]
        return None if plugin is None else self.call_plugin(plugin, hook, **arguments)

    def require(
        self,
        hook: str,
        expected: str = "something",
        accepts: Callable[[Any], bool] = lambda value: value is not None,
        **arguments: Any,
    ) -> Any:
        """Call a one-answer hook that a plugin answers. Raises HookError for a value that `accepts`
        refuses."""
        plugin, value = self._answers[hook], self.call_one(hook, **arguments)
        assert plugin is not None
        if not accepts(value):
            raise wrong_answer(plugin, hook, expected, value)
        return value

    def answers(self, hook: str) -> ActivePlugin | None:
        """Return the plugin that answers a one-answer hook."""
        return self._answers[hook]

    def implements(self, hook: str) -> bool:
        """Return whether any active plugin implements the hook."""
        return bool(self._functions(hook))

    def versions(self) -> tuple[PluginVersion, ...]:
        """Return name, distribution and version of each plugin, once, in order."""
        return tuple(dict.fromkeys(plugin.version for plugin in self.plugins))

    def _register(self, plugin: ActivePlugin, name: str) -> None:
        """Check names and arguments of the plugin's hooks, then register it with pluggy."""
        if wrong := validation_problems(type(plugin.instance)):
            label = f"plugin {plugin.name!r} ({plugin.distribution})"
            raise PluginError(f"{label} does not fit the hooks: {'; '.join(wrong)}")
        self._manager.marked = frozenset(dict(marked_methods(type(plugin.instance))))
        with attribute_errors_to(plugin, "registration"):
            self._manager.register(plugin.instance, name)

    def _functions(self, hook: str) -> dict[int, pluggy.HookImpl]:
        """Return implementations of a hook by the id of the instance, which may be unhashable."""
        caller = getattr(self._manager.hook, hook)
        return {id(found.plugin): found for found in caller.get_hookimpls()}

    def _one_answer(self, hook: str) -> ActivePlugin | None:
        """Return the plugin that claims a hook, else its slot's. Raises PluginError for two."""
        functions = self._functions(hook)
        implementing = [plugin for plugin in self.plugins if id(plugin.instance) in functions]
        claiming = [plugin for plugin in implementing if _claims(plugin, hook)]
        if len(claiming) > 1:
            names = " and ".join(repr(plugin.name) for plugin in claiming)
            raise PluginError(f"{names} both claim {hook}; a stack can hold one of them")
        slot = ONE_ANSWER[hook]
        filling = [plugin for plugin in implementing if slot is not None and plugin.slot == slot]
        return next(iter([*claiming, *filling]), None)


def _tolerances(plugins: Iterable[ActivePlugin], method: str) -> dict[str, float]:
    """Return what each plugin allows whose `method` declares something. Raises HookError."""
    found: dict[str, float] = {}
    for plugin in plugins:
        with attribute_errors_to(plugin, method), time_limit(limit_seconds()):
            allowed: Any = getattr(plugin.instance, method)()
        if allowed is None:
            continue
        if not isinstance(allowed, int | float) or not 0 <= allowed < math.inf:
            raise wrong_answer(plugin, method, "a number from 0 or None", allowed)
        found[plugin.name] = max(float(allowed), found.get(plugin.name, 0.0))
    return found


def task_of(active: ActivePlugins) -> Task[Any] | None:
    """Return the plugin that fills the slot `task`, also where another one builds the loss."""
    filling = (one.instance for one in active.plugins if one.slot == "task")
    return next((one for one in filling if isinstance(one, Task)), None)


def wrong_answer(plugin: ActivePlugin, hook: str, expected: str, got: Any) -> HookError:
    """Return the error for a hook that returned the wrong type."""
    shown = repr(got) if isinstance(got, int | float) else type(got).__name__
    problem = f"returned {shown} where {expected} is expected"
    return HookError(plugin.name, plugin.distribution, hook, problem)


def load_class(name: str, allow_torch: bool = False) -> type[Plugin[Any]]:
    """Import a plugin's class. Raises PluginError: plugin, distribution, reason."""
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
    """Import, configure and register what a scenario and a stack name, and nothing else.

    `where` returns the place in the file of what a path leads to, for messages. `on_plugin` is
    called with the number, from 1, of each plugin before it is imported. Raises PluginError
    for an unknown, broken or doubled plugin, bad options, two claims, a conflict or a wrong order.
    In the parent, a plugin whose import brings torch along is refused.
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


def _refuse_tracker(plugin: ActivePlugin) -> None:
    """Refuse a tracker as a part of a stack or of the work, whose id it would change."""
    if TRACKING in dict(marked_methods(type(plugin.instance))):
        raise PluginError(
            f"plugin {plugin.name!r} is a tracker, and no part of what is measured; write "
            f"`trackers: [{plugin.name}]`, or --plugin {plugin.name}"
        )


def _filled_slots(scenario: Scenario) -> Iterator[tuple[str, Use]]:
    """Yield each slot with its use. Raises PluginError for one without a plugin, but options."""
    for slot in Work.SLOTS:
        use: Use = getattr(scenario, slot)
        if use.use != NO_PLUGIN:
            yield slot, use
        elif use.options:
            given = ", ".join(use.options)
            raise PluginError(f"{slot}: none has no option {given}; name a plugin with {slot}.use")


def activate_slot(work: Work, slot: str, where: Callable[[Location], str]) -> ActivePlugin:
    """Import and configure the plugin of one slot alone. Raises PluginError as `activate` does."""
    use = getattr(work, slot)
    if use.use == NO_PLUGIN:
        raise PluginError(f"{slot}: none cannot be run; name a plugin")
    return activate_use(use, slot, (slot,), where)


def activate_use(
    use: Use, slot: str, place: Location, where: Callable[[Location], str]
) -> ActivePlugin:
    """Import and configure the plugin of one use, which stands at `place` in the file.

    Raises PluginError as `activate` does.
    """

    def label(path: Location) -> str:
        return f"{where((*place, *path))}: plugin {use.use!r} (as {slot})"

    try_in_copy([use], lambda: _use_plugin(use, slot, False, label))
    return _use_plugin(use, slot, False, label)


def _use_plugin(
    use: Use, slot: str | None, allow_torch: bool, label: Callable[[Location], str]
) -> ActivePlugin:
    """Import the plugin of one use and give it its validated options."""
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
    """Validate the options of a use and make its instance."""
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
    """Refuse a plugin used twice, conflicts, and an order that a plugin rules out."""
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
    """Return the nearest order that `after` and `before` allow; the given one when allowed."""
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
    """Refuse a slot whose hooks no plugin answers, such as `data: lora`."""
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


def try_in_copy(uses: Iterable[Use], work: Callable[[], object]) -> None:
    """Do `work` in a copy of this process first, where one of the uses is of another's plugin.

    Raises HookError for a plugin whose code ends the copy: it would end the program in silence.
    """
    if "torch" in sys.modules or not any(_is_foreign(name) for name in {use.use for use in uses}):
        return
    ending = ending_in_copy(work, limit_seconds())
    if ending and ending.how and any(ending.call):
        raise HookError(*ending.call, f"it ends the process ({ending.how})")


def _is_foreign(name: str) -> bool:
    with contextlib.suppress(PluginError):
        return not is_shipped(find(name).distribution)
    return False


@contextlib.contextmanager
def attribute_errors_to(plugin: ActivePlugin, what: str) -> Iterator[None]:
    """Turn what a plugin's code raises into an error that names the plugin.

    What it says of the scenario or of the run, it says by ScenarioError or InvalidRunError.
    """
    note_call(plugin.name, plugin.distribution, what)
    try:
        yield
    except (HookError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if isinstance(error, AccelBenchError) and not isinstance(error, PluginError):
            raise
        problem = problem_of(error)
        raise HookError(plugin.name, plugin.distribution, what, problem) from error


def problem_of(error: BaseException) -> str:
    """Return what a plugin's code raised, on one line."""
    if isinstance(error, PluginError):
        return str(error)
    if isinstance(error, TookTooLongError):
        return f"it did not return within {limit_seconds():g} s"
    return ": ".join(filter(None, (type(error).__name__, str(error))))


@contextlib.contextmanager
def _calling(plugin: ActivePlugin, hook: str, arguments: dict[str, Any]) -> Iterator[None]:
    """Attribute to a plugin what its hook raises, and what it registers with the run."""
    run = arguments.get("run")
    registers = run.calling(plugin) if isinstance(run, Run) else contextlib.nullcontext()
    limited = time_limit(limit_seconds()) if hook in LIMITED else contextlib.nullcontext()
    with attribute_errors_to(plugin, hook), registers, limited:
        yield


def _claims(plugin: ActivePlugin, hook: str) -> bool:
    """Return whether a plugin claims a one-answer hook that it implements.

    A slot's plugin without `claims` claims nothing: it answers the hooks of its slot.
    """
    with attribute_errors_to(plugin, "claims"), time_limit(limit_seconds()):
        claims = plugin.instance.claims()
    if claims is None:
        return plugin.slot is None
    if not isinstance(claims, frozenset | set):
        raise wrong_answer(plugin, "claims", "a frozenset or None", claims)
    return hook in claims and (plugin.slot is None or plugin.slot != ONE_ANSWER[hook])

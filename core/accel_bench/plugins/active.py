"""Active plugins of one run, whose hooks are called in written order.

A slot is a role in a scenario, such as `model` or `engine`, that one plugin fills. A one-answer
hook is called on one plugin alone, any other hook on every active plugin.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pluggy
from packaging.utils import canonicalize_name

from accel_bench import hookspecs
from accel_bench.documents.canonical import unreadable_part
from accel_bench.errors import AccelBenchError, HookError, PluginError
from accel_bench.hookspecs import LIMITED, ONE_ANSWER
from accel_bench.machine.provenance import distribution_version
from accel_bench.plugin import PROJECT, Plugin
from accel_bench.plugins.interpreter import Interpreter
from accel_bench.plugins.loading import TookTooLongError, limit_seconds, time_limit
from accel_bench.plugins.trial import note_call
from accel_bench.plugins.validation import marked_methods, validation_problems
from accel_bench.result import PluginVersion
from accel_bench.task import Task

LOSS_TOLERANCE, UPDATE_TOLERANCE = "allowed_loss_difference", "allowed_update_difference"
OUTPUT_TOLERANCE = "allowed_output_difference"

OBSERVERS = "observers"
"""Slot of plugins that observe steps, outside of an experiment."""

MOST_BY_SENSITIVITY = 0.95
"""Largest update tolerance after multiplication by a task's sensitivity: unchanged weights are at a
distance of 1."""


@dataclass(frozen=True)
class ActivePlugin:
    """Plugin in use by a run: its instance, name and distribution."""

    instance: Plugin[Any]
    """Plugin instance with its options."""

    name: str
    """Name of the plugin in `use`."""

    slot: str | None
    """Slot that the plugin fills; None for a plugin of the stack."""

    distribution: str

    set_at_import: tuple[str, ...] = ()
    """Environment variables that the plugin's import or creation changed, since restored."""

    installed_version: str | None = None
    """Version of the distribution in the job's environment; None if it is this environment."""

    unmet_there: tuple[str, ...] | None = None
    """Unmet requirements in the job's environment; None if it is this environment."""

    @property
    def version(self) -> PluginVersion:
        """Name, distribution and version of the plugin, as results store them."""
        version = self.installed_version or distribution_version(self.distribution)
        return PluginVersion(name=self.name, distribution=self.distribution, version=version)

    def run_by(self, there: Interpreter) -> ActivePlugin:
        """Return a copy with the version and unmet requirements in another interpreter, `there`."""
        version = there.distributions.get(canonicalize_name(self.distribution), "")
        unmet = there.unmet(self.name, self.distribution)
        return replace(self, installed_version=version, unmet_there=unmet)


class _Hooks(pluggy.PluginManager):
    """Pluggy manager that searches hooks among marked methods, not among all attributes."""

    marked: frozenset[str] = frozenset()

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        """Return pluggy's options of the plugin's attribute `name`; None if it is no hook."""
        return super().parse_hookimpl_opts(plugin, name) if name in self.marked else None


class ActivePlugins:
    """Plugins of one run, in the order in which their hooks are called."""

    def __init__(self, plugins: Sequence[ActivePlugin]) -> None:
        self.plugins = tuple(plugins)
        self._manager = _Hooks(PROJECT)
        self._manager.add_hookspecs(hookspecs)
        for number, plugin in enumerate(self.plugins):
            self._register(plugin, f"{number}:{plugin.name}")
        self._answers = {hook: self._one_answer(hook) for hook in ONE_ANSWER}
        task = task_of(self)
        of_loss = task.loss_sensitivity if task else 1.0
        of_update = task.update_sensitivity if task else 1.0
        self.loss_tolerances = _tolerances(self.plugins, LOSS_TOLERANCE, of_loss)
        declared = _tolerances(self.plugins, UPDATE_TOLERANCE)
        self.update_tolerances = {
            name: max(tolerance, min(of_update * tolerance, MOST_BY_SENSITIVITY))
            for name, tolerance in declared.items()
        }
        self.other_optimizers = tuple(
            plugin.name for plugin in self.plugins if plugin.instance.other_optimizer
        )
        self.output_tolerances = _tolerances(self.plugins, OUTPUT_TOLERANCE)

    def call_all(self, hook: str, **arguments: Any) -> Iterator[tuple[ActivePlugin, Any]]:
        """Call a hook of every plugin that implements it, in order; yield each plugin with the
        value that its hook returned. `arguments` are all that the hook may take. Raises HookError
        that names the plugin for any error but an AccelBenchError."""
        functions = self._functions(hook)
        for plugin in self.plugins:
            if id(plugin.instance) in functions:
                yield plugin, self.call_plugin(plugin, hook, **arguments)

    def call_lists(self, hook: str, **arguments: Any) -> Iterator[tuple[ActivePlugin, list[Any]]]:
        """Call a hook that returns an iterable, as `call_all` does; yield each plugin with its
        items as a list. Raises HookError for other types, and for an iterable that raises."""
        for plugin, value in self.call_all(hook, **arguments):
            if isinstance(value, str | bytes) or not isinstance(value, Iterable | None):
                raise wrong_return_type(plugin, hook, "a list", value)
            with _calling(plugin, hook, arguments):
                items = [] if value is None else list(value)
            yield plugin, items

    def call_plugin(self, plugin: ActivePlugin, hook: str, **arguments: Any) -> Any:
        """Call a hook of one plugin, and return its value; None if the plugin lacks the hook."""
        method = self._functions(hook).get(id(plugin.instance))
        if method is None:
            return None
        with _calling(plugin, hook, arguments):
            return method.function(*(arguments[name] for name in method.argnames))

    def call_one(self, hook: str, **arguments: Any) -> Any:
        """Return the value of a one-answer hook, or None if no plugin answers it."""
        plugin = self._answers[hook]
        return None if plugin is None else self.call_plugin(plugin, hook, **arguments)

    def require(
        self,
        hook: str,
        expected: str = "something",
        accepts: Callable[[Any], bool] = lambda value: value is not None,
        **arguments: Any,
    ) -> Any:
        """Return the value of a one-answer hook that a plugin must answer. Raises HookError for a
        value that `accepts` refuses; `expected` describes a right one, for messages."""
        plugin, value = self._answers[hook], self.call_one(hook, **arguments)
        assert plugin is not None
        if not accepts(value):
            raise wrong_return_type(plugin, hook, expected, value)
        return value

    def answers(self, hook: str) -> ActivePlugin | None:
        """Return the plugin that answers a one-answer hook, or None if no plugin does."""
        return self._answers[hook]

    def implements(self, hook: str) -> bool:
        """Return whether any active plugin implements the hook."""
        return bool(self._functions(hook))

    def versions(self) -> tuple[PluginVersion, ...]:
        """Return name, distribution and version of each plugin in order, each plugin once."""
        return tuple(dict.fromkeys(plugin.version for plugin in self.plugins))

    def _register(self, plugin: ActivePlugin, name: str) -> None:
        """Check names and arguments of the plugin's hooks, then register it as `name`."""
        if wrong := validation_problems(type(plugin.instance)):
            label = f"plugin {plugin.name!r} ({plugin.distribution})"
            raise PluginError(f"{label} does not fit the hooks: {'; '.join(wrong)}")
        self._manager.marked = frozenset(dict(marked_methods(type(plugin.instance))))
        with attribute_errors_to(plugin, "registration"):
            self._manager.register(plugin.instance, name)

    def _functions(self, hook: str) -> dict[int, pluggy.HookImpl]:
        """Return a hook's implementations by `id()` of the instance, which may be unhashable."""
        caller = getattr(self._manager.hook, hook)
        return {id(method.plugin): method for method in caller.get_hookimpls()}

    def _one_answer(self, hook: str) -> ActivePlugin | None:
        """Return the plugin that answers a hook, or None; raise PluginError if several claim it."""
        functions = self._functions(hook)
        implementing = [plugin for plugin in self.plugins if id(plugin.instance) in functions]
        claiming = [plugin for plugin in implementing if _claims(plugin, hook)]
        if len(claiming) > 1:
            names = " and ".join(repr(plugin.name) for plugin in claiming)
            raise PluginError(f"{names} both claim {hook}; a stack can hold one of them")
        slot = ONE_ANSWER[hook]
        filling = [plugin for plugin in implementing if slot is not None and plugin.slot == slot]
        return next(iter([*claiming, *filling]), None)


def _tolerances(
    plugins: Iterable[ActivePlugin], method: str, sensitivity: float = 1.0
) -> dict[str, float]:
    """Return, by plugin name, the tolerance that the method `method` returns, times `sensitivity`.
    A plugin whose method returns None is left out. Raises HookError for anything else that is not a
    number of at least 0."""
    by_name: dict[str, float] = {}
    for plugin in plugins:
        with attribute_errors_to(plugin, method), time_limit(limit_seconds()):
            allowed: Any = getattr(plugin.instance, method)()
        if allowed is None:
            continue
        if not isinstance(allowed, int | float) or not 0 <= allowed < math.inf:
            raise wrong_return_type(plugin, method, "a number from 0 or None", allowed)
        by_name[plugin.name] = max(sensitivity * float(allowed), by_name.get(plugin.name, 0.0))
    return by_name


def task_of(active: ActivePlugins) -> Task[Any] | None:
    """Return the plugin of the slot `task`, or None; another plugin may still build the loss."""
    filling = (plugin.instance for plugin in active.plugins if plugin.slot == "task")
    return next((task for task in filling if isinstance(task, Task)), None)


def wrong_return_type(plugin: ActivePlugin, hook: str, expected: str, got: Any) -> HookError:
    """Return the error for a hook that returned `got`; `expected` describes a right value."""
    shown = repr(got) if isinstance(got, int | float) else type(got).__name__
    problem = f"returned {shown} where {expected} is expected"
    return HookError(plugin.name, plugin.distribution, hook, problem)


def refuse_unreadable(plugin: ActivePlugin, hook: str, value: Any, *place: str) -> None:
    """Raise HookError if `value` could not be read back once stored; the error calls it `place`."""
    if fault := unreadable_part(value, *place):
        problem = f"gave what cannot be stored: {fault}"
        raise HookError(plugin.name, plugin.distribution, hook, problem)


@contextlib.contextmanager
def attribute_errors_to(plugin: ActivePlugin, what: str) -> Iterator[None]:
    """Turn an error of a plugin's code in the `with` block into an error that names the plugin.
    `what` names the code, such as a hook. Errors about the scenario or the run, such as
    ScenarioError and InvalidRunError, pass unchanged."""
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
    """Return the message of an error in a plugin's code as one line."""
    if isinstance(error, PluginError):
        return str(error)
    if isinstance(error, TookTooLongError):
        return f"it did not return within {limit_seconds():g} s"
    return ": ".join(filter(None, (type(error).__name__, str(error))))


@contextlib.contextmanager
def _calling(plugin: ActivePlugin, hook: str, arguments: dict[str, Any]) -> Iterator[None]:
    """Attribute errors in the `with` block, and callbacks that the hook registers, to a plugin."""
    calling = getattr(arguments.get("run"), "calling", contextlib.nullcontext)
    limited = time_limit(limit_seconds()) if hook in LIMITED else contextlib.nullcontext()
    with attribute_errors_to(plugin, hook), calling(plugin), limited:
        yield


def _claims(plugin: ActivePlugin, hook: str) -> bool:
    """Return whether a plugin wants to answer `hook`, which it implements, in place of the plugin
    of the hook's slot. For hooks of its own slot a plugin needs no claim."""
    with attribute_errors_to(plugin, "claims"), time_limit(limit_seconds()):
        claims = plugin.instance.claims()
    if claims is None:
        return plugin.slot is None
    if not isinstance(claims, frozenset | set):
        raise wrong_return_type(plugin, "claims", "a frozenset or None", claims)
    return hook in claims and (plugin.slot is None or plugin.slot != ONE_ANSWER[hook])

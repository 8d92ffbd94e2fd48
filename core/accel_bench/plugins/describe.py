"""Descriptions of plugins by importing them: hooks, options, constraints, and problems."""

from __future__ import annotations

import inspect
import json
import subprocess
from collections.abc import Collection
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic_core import to_jsonable_python

from accel_bench.documents.program import python_command
from accel_bench.errors import AccelBenchError
from accel_bench.hookspecs import ONE_ANSWER
from accel_bench.plugin import Plugin
from accel_bench.plugins.doors import OWN_DISTRIBUTION
from accel_bench.plugins.manager import TRACKING, load_class
from accel_bench.plugins.registry import find, installed
from accel_bench.plugins.validation import (
    declarations,
    hook_arguments,
    marked_methods,
    validation_problems,
)
from accel_bench.task import Task

ACCELERATING = frozenset({"accelerate_model", "compile_model"})
"""Hooks that only plugins of a stack implement."""

MEASURING = frozenset({"start_metrics", "finish_metrics", "observe_steps", "observe_ranks"})
"""Hooks of a plugin for the list `metrics`, if it implements no others."""

PROCESS_SECONDS = 60.0
"""Time limit in seconds of a process that imports one plugin; the import's own is shorter."""


def describe(name: str) -> dict[str, Any]:
    """Import a plugin and describe it as JSON. Raises PluginError for a broken one."""
    plugin = find(name)
    kind = load_class(name)
    return {
        "name": name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "summary": (inspect.getdoc(kind) or "").partition("\n")[0],
        "fills": list(slots_of(kind)) or ["stack"],
        "hooks": implemented(kind),
        **{key: _plain(getattr(kind, key)) for key in declarations()},
        "unmet": list(plugin.unmet(kind.requires)),
        "options": options_of(kind),
    }


def check(name: str) -> dict[str, Any]:
    """Return whether a plugin can be used here, with the reasons; never raise for a broken one."""
    try:
        described = describe(name)
        problems = [*described["unmet"], *_contract_problems(load_class(name))]
    except AccelBenchError as error:
        return {"name": name, "usable": False, "reasons": [str(error)]}
    return {"name": name, "usable": not problems, "reasons": problems}


def check_all() -> list[dict[str, Any]]:
    """Return the checks of all installed plugins, by name.

    A foreign plugin is imported in a process of its own, so that its imports and errors are not
    attributed to another.
    """
    return [
        {
            **(check(one.use) if one.distribution == OWN_DISTRIBUTION else _check_apart(one.use)),
            "distribution": one.distribution,
            "version": one.version,
        }
        for one in installed()
    ]


def _check_apart(name: str) -> dict[str, Any]:
    command = python_command("-m", "accel_bench", "plugins", "check", name, "--format", "json")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PROCESS_SECONDS
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found
    except subprocess.TimeoutExpired:
        problem = f"its import has not ended after {PROCESS_SECONDS:g} s"
    except ValueError:
        problem = f"its import ends the process (exit code {done.returncode})"
    return {"name": name, "usable": False, "reasons": [problem]}


def implemented(kind: type[Plugin[Any]]) -> list[str]:
    """Return the hooks that a class implements, in call order."""
    marked = dict(marked_methods(kind))
    return [name for name in hook_arguments() if name in marked]


def slots_of(kind: type[Plugin[Any]]) -> tuple[str, ...]:
    """Return the slots that a plugin fills; empty for a plugin of the stack.

    A task fills its slot, whatever it claims. Another plugin with `claims` belongs into the stack,
    unless it brings both a model and an engine: then it is an engine, which replaces the model.
    """
    hooks = implemented(kind)
    if issubclass(kind, Task):
        return ("task",)
    if kind.claims is Plugin.claims:
        return slots_of_hooks(hooks)
    return ("engine",) if {"load_model", "build_engine"} <= set(hooks) else ()


def slots_of_hooks(hooks: Collection[str]) -> tuple[str, ...]:
    """Return the slots that a plugin with these hooks fills; empty for an acceleration."""
    if TRACKING in hooks:
        return ("trackers",)
    if not ACCELERATING.isdisjoint(hooks):
        return ()
    filled = [slot for hook, slot in ONE_ANSWER.items() if slot and hook in hooks]
    if not filled and not MEASURING.isdisjoint(hooks):
        return ("metrics",)
    return tuple(dict.fromkeys(filled))


def options_of(kind: type[Plugin[Any]]) -> list[dict[str, Any]]:
    """Return name, type, default and description of each option."""
    return [
        {
            "name": name,
            "type": _type_name(field.annotation),
            "default": "required"
            if field.is_required()
            else _plain(field.get_default(call_default_factory=True)),
            "description": field.description or "",
        }
        for name, field in kind.Options.model_fields.items()
    ]


def _contract_problems(kind: type[Plugin[Any]]) -> list[str]:
    """Return violations of the contract, and options without a description."""
    problems = [
        f"option {o['name']!r} has no description" for o in options_of(kind) if not o["description"]
    ]
    problems += validation_problems(kind)
    if not marked_methods(kind):
        problems.append("implements no hook")
    return problems


def _type_name(annotation: Any) -> str:
    """Format a type for people."""
    if annotation is type(None):
        return "null"
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(map(_type_name, get_args(annotation)))
    if get_origin(annotation) is Annotated:
        return _type_name(get_args(annotation)[0])
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    return str(annotation).replace("typing.", "")


def _plain(value: Any) -> Any:
    # A set has no order of its own.
    if isinstance(value, frozenset):
        return sorted(value)
    return to_jsonable_python(value, fallback=str)

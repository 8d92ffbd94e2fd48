"""Description of a plugin's class: hooks, options, and slots (roles such as `model`) it fills."""

from __future__ import annotations

from collections.abc import Collection
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic_core import to_jsonable_python

from accel_bench.hookspecs import ONE_ANSWER
from accel_bench.plugin import Plugin
from accel_bench.plugins.manager import TRACKING
from accel_bench.plugins.validation import (
    hook_arguments,
    marked_methods,
)
from accel_bench.task import Task

ACCELERATING = frozenset({"accelerate_model", "compile_model"})
"""Hooks that only plugins of a stack implement."""

MEASURING = frozenset({"start_metrics", "finish_metrics", "observe_steps", "observe_ranks"})
"""Hooks of a plugin for the list `metrics`, if it implements no others."""


def implemented(kind: type[Plugin[Any]]) -> list[str]:
    """Return the hooks that a class implements, in call order."""
    marked = dict(marked_methods(kind))
    return [name for name in hook_arguments() if name in marked]


def slots_of(kind: type[Plugin[Any]]) -> tuple[str, ...]:
    """Return the slots, such as `model`, that a plugin fills; empty for a plugin of the stack.

    A task fills the slot `task` alone. Any other plugin that overrides `claims` belongs in the
    stack, unless it implements `load_model` and `build_engine`: then it fills the slot `engine`.
    """
    hooks = implemented(kind)
    if issubclass(kind, Task):
        return ("task",)
    if kind.claims is Plugin.claims:
        return slots_of_hooks(hooks)
    return ("engine",) if {"load_model", "build_engine"} <= set(hooks) else ()


def slots_of_hooks(hooks: Collection[str]) -> tuple[str, ...]:
    """Return the slots that a plugin with these hooks fills; empty for a plugin of the stack."""
    if TRACKING in hooks:
        return ("trackers",)
    if not ACCELERATING.isdisjoint(hooks):
        return ()
    filled = [slot for hook, slot in ONE_ANSWER.items() if slot and hook in hooks]
    if not filled and not MEASURING.isdisjoint(hooks):
        return ("metrics",)
    return tuple(dict.fromkeys(filled))


def options_of(kind: type[Plugin[Any]]) -> list[dict[str, Any]]:
    """Return name, type, default and description of each option of a plugin's class."""
    return [
        {
            "name": name,
            "type": _type_name(field.annotation),
            "default": "required"
            if field.is_required()
            else plain_value(field.get_default(call_default_factory=True)),
            "description": field.description or "",
        }
        for name, field in kind.Options.model_fields.items()
    ]


def _type_name(annotation: Any) -> str:
    """Return the name of an option's type, as help pages print it."""
    if annotation is type(None):
        return "null"
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(map(_type_name, get_args(annotation)))
    if get_origin(annotation) is Annotated:
        return _type_name(get_args(annotation)[0])
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    return str(annotation).replace("typing.", "")


def plain_value(value: Any) -> Any:
    """Return the value of a declaration or a default in a form that JSON can hold."""
    # A set has no order of its own.
    if isinstance(value, frozenset):
        return sorted(value)
    return to_jsonable_python(value, fallback=str)

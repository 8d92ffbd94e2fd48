"""What a plugin says of itself once it is imported: hooks, options, constraints, and whether it
fits."""

from __future__ import annotations

import inspect
import json
from types import UnionType
from typing import Any, Union, get_args, get_origin

from accel_bench.errors import AccelBenchError
from accel_bench.installed import find, unmet_requirement
from accel_bench.misfits import misfits
from accel_bench.plugin import PROJECT, Plugin
from accel_bench.plugins import hooks, load_class

CONSTRAINTS = (
    "requires",
    "restricted_model_archs",
    "devices",
    "dtypes",
    "tasks",
    "modes",
    "minimum_compute_capability",
    "needs_adapter",
    "conflicts",
    "after",
    "before",
    "loss_tolerance",
    "strategy",
)
"""Class attributes that a plugin declares, in the order of `Plugin`."""


def describe(name: str) -> dict[str, Any]:
    """Import a plugin and describe it as JSON. Raises PluginError for a broken one."""
    plugin = find(name)
    kind = load_class(name)
    return {
        "name": name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "summary": (inspect.getdoc(kind) or "").partition("\n")[0],
        "hooks": implemented(kind),
        **{key: _plain(getattr(kind, key)) for key in CONSTRAINTS},
        "unmet": [*plugin.unmet, *filter(None, map(unmet_requirement, kind.requires))],
        "options": options_of(kind),
    }


def check(name: str) -> dict[str, Any]:
    """Whether a plugin can be used here, and why not. Never raises for a broken one."""
    try:
        described = describe(name)
        problems = [*described["unmet"], *_misfits(load_class(name))]
    except AccelBenchError as error:
        return {"name": name, "usable": False, "reasons": [str(error)]}
    return {"name": name, "usable": not problems, "reasons": problems}


def implemented(kind: type[Plugin[Any]]) -> list[str]:
    """Hooks that a class implements, in call order."""
    marked = _marked(kind)
    return [name for name in hooks() if name in marked]


def options_of(kind: type[Plugin[Any]]) -> list[dict[str, Any]]:
    """Name, type, default and description of each option."""
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


def _misfits(kind: type[Plugin[Any]]) -> list[str]:
    """What does not fit the hooks, and which options have no documentation."""
    problems = [
        f"option {o['name']!r} has no description" for o in options_of(kind) if not o["description"]
    ]
    problems += misfits(kind)
    if not _marked(kind):
        problems.append("implements no hook")
    return problems


def _marked(kind: type[Plugin[Any]]) -> set[str]:
    """Names of the methods that are marked as implementations."""
    return {name for name, value in inspect.getmembers(kind) if hasattr(value, f"{PROJECT}_impl")}


def _type_name(annotation: Any) -> str:
    """A type as a person writes it."""
    if annotation is type(None):
        return "null"
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(map(_type_name, get_args(annotation)))
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    return str(annotation).replace("typing.", "")


def _plain(value: Any) -> Any:
    """Sets and tuples as sorted or ordered lists; models as JSON."""
    if isinstance(value, frozenset):
        return sorted(value)
    return json.loads(
        json.dumps(value, default=lambda item: getattr(item, "model_dump", lambda: str(item))())
    )

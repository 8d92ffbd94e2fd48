"""All keys of scenario files, with their values, defaults and meanings, as the schema has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from accel_bench.scenario.file_schema import file_schema

KINDS = {"integer": "whole number", "string": "text", "boolean": "true, false", "null": "null"}
"""JSON's names of kinds, as people read them."""


class ScenarioKey(NamedTuple):
    """One key."""

    key: str
    """Dotted; `NAME` stands for a name of your choice, and `[]` for each item of a list."""

    values: str
    default: str
    """As JSON; empty where there is none, or where it depends."""

    meaning: str


def scenario_keys() -> list[ScenarioKey]:
    """Return all keys in the order of the models."""
    schema = file_schema()
    return list(_keys("", schema, schema["$defs"]))


def _keys(above: str, node: dict[str, Any], defs: dict[str, Any]) -> Iterator[ScenarioKey]:
    """Yield the keys of an object: sections by their keys alone, lists and maps themselves too."""
    for name, inner in node["properties"].items():
        place, below = _object_in(f"{above}{name}", inner, defs)
        if below is None or "$ref" not in inner:
            default = json.dumps(inner["default"]) if "default" in inner else ""
            meaning = " ".join(inner.get("description", "").split())
            yield ScenarioKey(f"{above}{name}", _values(inner, defs), default, meaning)
        if below is not None:
            yield from _keys(f"{place}.", below, defs)


def _object_in(
    key: str, node: dict[str, Any], defs: dict[str, Any]
) -> tuple[str, dict[str, Any] | None]:
    """Return the object with keys of its own that a value is or holds, and where it stands."""
    if "$ref" in node:
        return _object_in(key, defs[node["$ref"].rpartition("/")[2]], defs)
    if "properties" in node:
        return key, node
    if "items" in node:
        place, found = _object_in(f"{key}[]", node["items"], defs)
        # Uses of plugins have no key but `use`, which a bare name stands for.
        return place, found if found and found["properties"].keys() != {"use"} else None
    named = node.get("patternProperties", {}).values()
    inside = [
        *(_object_in(key, one, defs) for one in node.get("anyOf", ())),
        *(_object_in(f"{key}.NAME", one, defs) for one in named),
    ]
    return next((one for one in inside if one[1] is not None), (key, None))


def _values(node: dict[str, Any], defs: dict[str, Any]) -> str:
    """Return `cpu, cuda` or `whole number, null`: what a key may be."""
    if "$ref" in node:
        return _values(defs[node["$ref"].rpartition("/")[2]], defs)
    if "anyOf" in node:
        return ", ".join(dict.fromkeys(_values(one, defs) for one in node["anyOf"]))
    if words := node.get("enum", [node["const"]] if "const" in node else []):
        return ", ".join(map(str, words))
    if node.get("type") == "array":
        return f"list of {_values(node.get('items', {}), defs)}"
    if node.get("type") == "object":
        return "mapping"
    kind = str(node.get("type", "any value"))
    return KINDS.get(kind, kind)

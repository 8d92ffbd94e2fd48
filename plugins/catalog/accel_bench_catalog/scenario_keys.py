"""The JSON schema of scenario files, for editors, and the table of all their keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from accel_bench.scenario.models import ScenarioFile

KINDS = {"integer": "whole number", "string": "text", "boolean": "true, false", "null": "null"}
"""Readable names of JSON types."""


def editor_schema() -> dict[str, Any]:
    """Return the JSON schema of scenario files, with short forms such as a plugin's bare name."""
    schema = ScenarioFile.model_json_schema()
    properties = schema["properties"]
    file = {"type": "string"}
    properties["extends"] = {
        "description": "Files, or shipped scenarios, that this one changes.",
        "anyOf": [file, {"type": "array", "items": file}],
    }
    use = {"anyOf": [{"type": "string"}, {"type": "object", "required": ["use"]}]}
    ((pattern, spelt_out),) = properties["stacks"]["patternProperties"].items()
    properties["stacks"]["patternProperties"] = {
        pattern: {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": use},
                {"type": "null"},  # takes a stack of a file below back
                spelt_out,
            ]
        }
    }
    properties["stacks"]["additionalProperties"] = False
    tag = properties["tag"]
    properties["tag"] = {
        "description": tag.pop("description", ""),
        "anyOf": [{"const": "off"}, tag],
    }
    properties["ladder"]["items"] = _ladder_item_schema(use)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _ladder_item_schema(use: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of a ladder's item: plugin name, plugin with options, or mapping.

    `use` is the JSON schema of a plugin's name with its options.
    """
    one_use = {"type": "object", "required": ["use"], "properties": {"use": {"type": "string"}}}
    parts = {
        "name": {"type": "string"},
        "set": {"type": "object"},
        "use": {"anyOf": [{"type": "string"}, {"type": "array", "items": use}]},
    }
    entry = {"type": "object", "additionalProperties": False, "properties": parts}
    return {"anyOf": [{"type": "string"}, one_use, entry]}


class ScenarioKey(NamedTuple):
    """One key of a scenario file, as a row of the table of keys."""

    key: str
    """Dotted key; `NAME` stands for a name of your choice, and `[]` for each item of a list."""

    values: str
    default: str
    """Default as JSON; empty if there is none, or if it depends on other keys."""

    meaning: str


def scenario_keys() -> list[ScenarioKey]:
    """Return all keys of a scenario file, in the order of the schema."""
    schema = editor_schema()
    return list(_keys("", schema, schema["$defs"]))


def _keys(above: str, node: dict[str, Any], defs: dict[str, Any]) -> Iterator[ScenarioKey]:
    """Yield the keys of a schema node and of the objects nested in it, depth first.

    `above` is the dotted prefix of the node's keys, and `defs` has the schema's definitions by
    name. Keys of sections that have only nested keys are left out.
    """
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
    """Return the dotted key and the schema of the first object nested in a schema node.

    `key` is the node's key, and `defs` has the schema's definitions by name. Without such an object
    it returns `key` and None.
    """
    if "$ref" in node:
        return _object_in(key, defs[node["$ref"].rpartition("/")[2]], defs)
    if "properties" in node:
        return key, node
    if "items" in node:
        place, nested = _object_in(f"{key}[]", node["items"], defs)
        # Uses of plugins have no key but `use`, which a bare name stands for.
        return place, nested if nested and nested["properties"].keys() != {"use"} else None
    named = node.get("patternProperties", {}).values()
    inside = [
        *(_object_in(key, option, defs) for option in node.get("anyOf", ())),
        *(_object_in(f"{key}.NAME", value, defs) for value in named),
    ]
    return next((pair for pair in inside if pair[1] is not None), (key, None))


def _values(node: dict[str, Any], defs: dict[str, Any]) -> str:
    """Return a schema node's allowed values or types: `cpu, cuda`, or `whole number, null`.

    `defs` has the schema's definitions by name.
    """
    if "$ref" in node:
        return _values(defs[node["$ref"].rpartition("/")[2]], defs)
    if "anyOf" in node:
        return ", ".join(dict.fromkeys(_values(option, defs) for option in node["anyOf"]))
    if words := node.get("enum", [node["const"]] if "const" in node else []):
        return ", ".join(map(str, words))
    if node.get("type") == "array":
        return f"list of {_values(node.get('items', {}), defs)}"
    if node.get("type") == "object":
        return "mapping"
    kind = str(node.get("type", "any value"))
    return KINDS.get(kind, kind)

"""The JSON schema of scenario files, for editors."""

from __future__ import annotations

from typing import Any

from accel_bench.scenario.models import ScenarioFile


def file_schema() -> dict[str, Any]:
    """Return the JSON schema of scenario files, with the short spellings that reading expands."""
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
    """Describe a name, one use with its options, or settings with or without uses."""
    one_use = {"type": "object", "required": ["use"], "properties": {"use": {"type": "string"}}}
    parts = {
        "name": {"type": "string"},
        "set": {"type": "object"},
        "use": {"anyOf": [{"type": "string"}, {"type": "array", "items": use}]},
    }
    entry = {"type": "object", "additionalProperties": False, "properties": parts}
    return {"anyOf": [{"type": "string"}, one_use, entry]}

"""`accel-bench scenarios schema` and `scenarios keys`: what a scenario file may say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli.program import call

from accel_bench.documents.load import load_file
from accel_bench.documents.presets import find_presets


def schema() -> dict[str, Any]:
    """The schema that `scenarios schema` prints."""
    done = call("scenarios", "schema")
    assert (done.code, done.err) == (0, "")
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_the_schema_describes_every_key_and_refuses_others() -> None:
    found = schema()
    assert found["$schema"].startswith("https://json-schema.org/")
    assert found["additionalProperties"] is False
    assert {"model", "stacks", "sweep", "extends"} <= set(found["properties"])
    assert [key for key in found["properties"] if not description(found, key)] == []


def description(found: dict[str, Any], key: str) -> str:
    """Description of a property, its own or of the model that it refers to."""
    value = found["properties"][key]
    model = found["$defs"].get(value.get("$ref", "").rpartition("/")[2], {})
    return str(value.get("description") or model.get("description") or "")


def test_the_schema_s_references_all_lead_somewhere() -> None:
    found = schema()
    names = {reference.rpartition("/")[2] for reference in references(found)}
    assert names <= set(found["$defs"])


def references(node: Any) -> list[str]:
    """Every `$ref` in a schema."""
    if isinstance(node, list):
        return [found for item in node for found in references(item)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"]] if "$ref" in node else []
    return own + [found for value in node.values() for found in references(value)]


@pytest.mark.parametrize("name", sorted(find_presets("scenarios")))
def test_the_schema_accepts_the_shipped_scenarios(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator
    validator.check_schema(schema())
    data = load_file(find_presets("scenarios")[name]).data
    assert [error.message for error in validator(schema()).iter_errors(data)] == []


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("model: null-model", True),
        ("{model: {use: x, option: 1}, metrics: [memory, {use: x, every: 2}]}", True),
        ("stacks: {a: [], b: [x, {use: y, z: 1}], c: {set: {k: 1}, use: [x]}, d: named}", True),
        ("{extends: base.yaml, slow: true}", True),
        ("{extends: base.yaml, stacks: {of-the-base: null}}", True),
        ("extends: [a.yaml, b.yaml]", True),
        ("{sweep: {train.seed: [1, 2]}, exclude: [{when: {stack: a}, because: b}]}", True),
        ("measure: {warmup: auto}", True),
        ("measure: {warmup: 3}", True),
        ("measure: {warmup: often}", False),
        ("trian: {}", False),
        ("train: {micro_batch_size: 0}", False),
        ("train: {micro_batch: 1}", False),
        ("stacks: {a: [{option: 1}]}", False),
        ("stacks: {a: {use: [x], unknown: 1}}", False),
    ],
)
def test_the_schema_accepts_what_the_program_accepts(
    text: str, accepted: bool, tmp_path: Path
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    path = tmp_path / "some.yaml"
    path.write_text(text + "\n")
    errors = list(jsonschema.Draft202012Validator(schema()).iter_errors(load_file(path).data))
    assert (not errors) is accepted, errors


def test_the_page_of_all_keys_is_what_the_program_prints() -> None:
    page = (Path(__file__).parents[3] / "docs" / "scenario.md").read_text(encoding="utf8")
    table = call("scenarios", "keys", "--format", "markdown").out.strip()
    assert page.endswith(f"\n\n{table}\n"), "write it anew: accel-bench scenarios keys"


def test_every_key_is_listed_with_its_values_default_and_meaning() -> None:
    rows = json.loads(call("scenarios", "keys", "--format", "json").out)
    assert all(row["meaning"] and row["values"] for row in rows)
    found = {row["key"]: row for row in rows}
    assert {key.partition(".")[0].partition("[")[0] for key in found} == {*schema()["properties"]}
    device = found["resources.device"]
    assert (device["values"], device["default"]) == ("text", '"auto"')
    assert found["measure.warmup"]["values"] == "whole number, auto"
    assert {"stacks.NAME.set", "exclude[].when", "adapter.use"} <= found.keys()

"""`accel-bench scenarios`: list, show, validate, and the schema for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli.program import call, write_nulls

from accel_bench.documents import presets
from accel_bench.documents.load import load_file
from accel_bench.documents.presets import find_presets


def schema() -> dict[str, Any]:
    """What `scenarios schema` prints."""
    done = call("scenarios", "schema")
    assert (done.code, done.err) == (0, "")
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_the_list_says_what_each_scenario_asks() -> None:
    rows = {r["name"]: r for r in json.loads(call("scenarios", "list", "--format", "json").out)}
    assert rows["quickstart"]["slow"] is False
    assert rows["quickstart"]["stacks"][:2] == ["baseline", "padding-free"]
    assert rows["quickstart"]["description"]


@pytest.mark.box
def test_the_list_says_what_each_scenario_needs() -> None:
    rows = {r["name"]: r for r in json.loads(call("scenarios", "list", "--format", "json").out)}
    assert rows["lora-8b-24gb"]["needs"] == ["1 GPU of 24 GB"]
    assert rows["quickstart"]["needs"] == ["extra compile", "extra padding-free"]
    assert rows["distributed-cpu"]["needs"] == ["2 processes", "extra distributed"]
    assert rows["noise-floor"]["needs"] == []


def test_a_scenario_whose_base_is_missing_is_listed_with_the_reason_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("extends: taken-away\n")
    known = {**find_presets("scenarios"), "broken": broken}
    monkeypatch.setattr(presets, "find_presets", lambda kind: known)
    done = call("scenarios", "list", "--format", "json")
    rows = {row["name"]: row for row in json.loads(done.out)}
    assert done.code == 0 and len(rows) == len(known)
    assert rows["broken"]["stacks"] == []
    assert "cannot be used" in rows["broken"]["description"]
    assert "'taken-away' is no file beside this one" in rows["broken"]["description"]


def test_the_table_has_the_names_of_the_json_as_columns() -> None:
    columns = list(json.loads(call("scenarios", "list", "--format", "json").out)[0])
    assert call("scenarios", "list").out.split("\n")[0].split() == columns


def test_a_shown_scenario_is_a_file_that_can_be_run(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(call("scenarios", "show", "quickstart").out)
    done = call("scenarios", "check", str(tmp_path / "mine.yaml"))
    assert done.code == 0
    assert done.out.endswith("mine.yaml: ok, 20 runs here\n")


def test_validate_reports_every_wrong_file_and_ends_with_2(tmp_path: Path) -> None:
    good = write_nulls(tmp_path)
    typo = write_nulls(tmp_path, "typo.yaml", train="{micro_batch: 2}")
    option = write_nulls(tmp_path, "option.yaml", stacks="{a: [{use: torch-compile, mod: x}]}")
    done = call("scenarios", "check", *map(str, (good, typo, option, tmp_path / "none.yaml")))
    assert done.code == 2
    assert done.out == f"{good}: ok, 2 runs here\n"
    assert "typo.yaml:8:9: unknown key 'train.micro_batch'" in done.err
    assert "unknown key 'mod'; did you mean 'mode'?" in done.err
    assert "none.yaml" in done.err


def test_validate_takes_a_scenario_that_cannot_run_here(tmp_path: Path) -> None:
    far = write_nulls(tmp_path, resources="{nodes: 2}")
    done = call("scenarios", "check", str(far))
    assert done.code == 0
    assert "ok, but nothing can run here" in done.out


def test_validate_checks_every_scenario_of_a_folder(tmp_path: Path) -> None:
    write_nulls(tmp_path, "a.yaml")
    write_nulls(tmp_path, "b.yaml", trian="{}")
    done = call("scenarios", "check", str(tmp_path))
    assert done.code == 2
    assert "b.yaml:8:1: unknown key 'trian'; did you mean 'train'?" in done.err


def test_validate_lets_a_scenario_set_any_variable_since_nothing_runs(tmp_path: Path) -> None:
    path = write_nulls(tmp_path, environment="{MY_VARIABLE: 'on'}")
    assert call("scenarios", "check", str(path)).code == 0


def test_the_schema_describes_every_key_and_refuses_others() -> None:
    found = schema()
    assert found["$schema"].startswith("https://json-schema.org/")
    assert found["additionalProperties"] is False
    assert {"model", "stacks", "sweep", "extends"} <= set(found["properties"])
    assert [key for key in found["properties"] if not description(found, key)] == []


def description(found: dict[str, Any], key: str) -> str:
    """What a property says of itself, or what the model that it refers to says."""
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
    page = (Path(__file__).parents[2] / "docs" / "scenario.md").read_text(encoding="utf8")
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


def test_a_new_scenario_is_a_copy_that_checks_and_replaces_no_file(tmp_path: Path) -> None:
    done = call("scenarios", "new", "my.yaml", "--like", "noise-floor", folder=tmp_path)
    assert done.code == 0 and "scenarios check my.yaml" in done.out
    assert call("scenarios", "show", "noise-floor").out == (tmp_path / "my.yaml").read_text()
    again = call("scenarios", "new", "my.yaml", folder=tmp_path)
    assert (again.code, "is already there" in again.err) == (2, True)
    assert call("scenarios", "new", "x", "--like", "quickstrat", folder=tmp_path).code == 2

"""`accel-bench scenarios`: list, show, validate, new."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.program import call, write_nulls

from accel_bench.documents import presets
from accel_bench.documents.presets import find_presets


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


def test_a_new_scenario_is_a_copy_that_checks_and_replaces_no_file(tmp_path: Path) -> None:
    done = call("scenarios", "new", "my.yaml", "--like", "noise-floor", folder=tmp_path)
    assert done.code == 0 and "scenarios check my.yaml" in done.out
    assert call("scenarios", "show", "noise-floor").out == (tmp_path / "my.yaml").read_text()
    again = call("scenarios", "new", "my.yaml", folder=tmp_path)
    assert (again.code, "is already there" in again.err) == (2, True)
    assert call("scenarios", "new", "x", "--like", "quickstrat", folder=tmp_path).code == 2

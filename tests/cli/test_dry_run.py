"""`run --dry-run`: the whole plan, the same every time, and nothing left on the disk."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cli.program import call, start, write_nulls


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with the scenario `nulls.yaml`."""
    monkeypatch.chdir(tmp_path)
    write_nulls(tmp_path, stacks="{baseline: [], other: {set: {train.seed: 7}}}")
    return tmp_path


def plan(*arguments: str) -> dict[str, Any]:
    """The plan of `nulls.yaml` as JSON."""
    done = call("run", "nulls.yaml", "--dry-run", "--format", "json", *arguments)
    assert (done.code, done.err) == (0, "")
    found: dict[str, Any] = json.loads(done.out)
    return found


def ids(found: dict[str, Any]) -> list[str]:
    """Experiment ids, in order."""
    return [row["experiment_id"] for row in found["experiments"]]


def test_nothing_is_made_on_the_disk(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    assert call("run", "nulls.yaml", "--dry-run", "--results", "new").code == 0
    assert sorted(folder.rglob("*")) == before


@pytest.mark.box
@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("data.path", "data={use: text, source: path, path: ~nosuchuser/a.txt}"),
        ("data.path", "data={use: instructions, source: path, path: ~nosuchuser/a.jsonl}"),
        ("data.tokenizer", "data={use: text, tokenizer: ~nosuchuser/a.json}"),
        ("data.tokenizer", "data={use: instructions, tokenizer: ~nosuchuser/folder}"),
        ("model.id", "model={id: ~nosuchuser/model}"),
    ],
)
def test_a_home_of_nobody_is_a_path_that_is_not_there(key: str, settings: str) -> None:
    done = call("run", "nulls.yaml", "--dry-run", "--set", settings)
    assert done.code == 2
    assert done.err.startswith(f"error: {key} '~nosuchuser/")


def test_each_experiment_has_its_id_what_it_changes_and_its_place_in_the_sweep() -> None:
    found = plan("--set", "sweep.train.learning_rate=[0.1,0.2]")
    assert len(set(ids(found))) == 4
    assert all(len(name) == 12 for name in ids(found))
    assert [row["stack"] for row in found["experiments"]] == ["baseline", "other"] * 2
    assert found["experiments"][3]["sweep"] == {"train.learning_rate": 0.2}
    assert found["experiments"][3]["differs"] == "train.seed=7"
    assert {row["status"] for row in found["experiments"]} == {"planned"}


def test_ids_are_the_same_in_another_process_and_those_of_the_real_run() -> None:
    arguments = ("run", "nulls.yaml", "--format", "json", "-q")
    planned, real = start(*arguments, "--dry-run"), start(*arguments)
    assert real.code == 0, real.err
    assert ids(json.loads(planned.out)) == ids(json.loads(real.out))


def test_a_skipped_experiment_stands_there_with_its_reasons() -> None:
    found = plan("--set", "stacks.far={set: {resources.nodes: 2}}")
    row = found["experiments"][2]
    assert (row["stack"], row["status"]) == ("far", "skipped")
    assert row["reasons"] == ["local: starts processes on one node, 2 are asked for"]
    assert found["runs"] == 2


def test_an_excluded_point_stands_there_with_the_file_s_reason(folder: Path) -> None:
    rule = "[{when: {stack: other, train.learning_rate: 0.2}, because: it never ends}]"
    write_nulls(folder, sweep="{train.learning_rate: [0.1, 0.2]}", exclude=rule)
    rows = plan()["experiments"]
    assert [row["reasons"] for row in rows] == [[], [], [], ["excluded: it never ends"]]


def test_the_time_is_what_earlier_runs_took_where_there_are_any() -> None:
    unknown = plan()
    assert unknown["estimated_seconds"] is None
    assert unknown["estimate"] == "time not known: not all of it has run here before"
    assert call("run", "nulls.yaml", "-q").code == 0
    one, three = plan(), plan("--rounds", "3")
    assert three["estimated_seconds"] == pytest.approx(3 * one["estimated_seconds"], abs=0.2)
    assert (one["runs"], three["runs"]) == (2, 6)
    assert "from earlier runs here" in one["estimate"]
    assert plan("--results", "elsewhere")["estimated_seconds"] is None


def test_a_table_shows_whole_names_where_there_is_no_terminal(folder: Path) -> None:
    name = "a-stack-with-a-name-that-is-rather-long-but-still-allowed"
    write_nulls(folder, stacks=f"{{baseline: [], {name}: []}}")
    done = call("run", "nulls.yaml", "--dry-run")
    assert done.out.startswith("nulls: 2 runs, time not known: ")
    assert name in done.out
    columns = plan()["experiments"][0].keys() - {"tag"}  # nothing is swept
    assert all(column in done.out for column in columns)


def test_csv_has_a_row_for_each_experiment_of_all_files(folder: Path) -> None:
    write_nulls(folder, "second.yaml", name="second", stacks="{alone: []}")
    done = call("run", "nulls.yaml", "second.yaml", "--dry-run", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert [row["scenario"] for row in rows] == ["nulls", "nulls", "second"]
    assert [row["experiment_id"] for row in rows[:2]] == ids(plan())


def test_markdown_has_as_many_cells_in_every_row() -> None:
    done = call("run", "nulls.yaml", "--dry-run", "--format", "markdown")
    assert len({line.count("|") for line in done.out.splitlines()}) == 1
    assert len(done.out.splitlines()) == 4


def test_what_a_plugin_needs_is_noticed_for_every_stack() -> None:
    """`lora` stands in for a plugin that needs something: it is added nowhere by itself."""
    found = plan()
    assert found["notices"] == []


def test_no_secret_of_the_environment_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary-0123456789")
    path = write_nulls(tmp_path)
    with path.open("a") as file:
        file.write("exclude: [{when: {stack: other}, because: canary-0123456789}]\n")
    for form in ("table", "json"):
        done = call("run", str(path), "--dry-run", "--format", form)
        assert done.code == 0, done.err
        assert "canary" not in done.out
        assert "[redacted]" in done.out


def test_a_secret_that_is_a_word_of_the_schema_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "bf16-autocast")
    scenario = write_nulls(tmp_path, train="{precision: bf16-autocast}")
    done = call("run", str(scenario), "--dry-run")
    assert done.code == 2
    assert "unset variables such as PASSWORD=float32" in done.err


def test_a_plugin_without_a_file_stands_beside_the_baseline_alone() -> None:
    words = ("run", "--plugin", "torch-compile", "--dry-run", "--format", "json")
    rows = json.loads(call(*words).out)["experiments"]
    assert [row["stack"] for row in rows] == ["baseline", "torch-compile"]


HUGE = ("--set", "model.id=llama-2-70b", "--set", "model.overrides.num_hidden_layers=8000")
"""Seven million million parameters: no machine holds them."""


@pytest.mark.box
def test_what_cannot_fit_is_refused_with_2_unless_it_is_forced() -> None:
    refused = call("run", *HUGE)
    assert refused.code == 2
    assert refused.err.startswith("error: not enough memory. baseline")
    assert "--force" in refused.err
    forced = call("run", *HUGE, "--force", "--dry-run", "--format", "json")
    assert forced.code == 0, forced.err
    found = json.loads(forced.out)
    (memory,) = found["memory"]
    assert re.search(r": at least [\d,]+ GiB of memory \([^)]+ optimizer state\)", memory)


def test_more_processes_than_cores_are_refused_with_2() -> None:
    words = ("run", "nulls.yaml", "--dry-run", "--device", "cpu", "--set", "parallel=none")
    refused = call(*words, "--set", "resources.devices=1000")
    assert (refused.code, refused.out) == (2, "")
    assert "1,000 processes would share" in refused.err
    allowed = call(*words, "--set", "resources.devices=1000", "--oversubscribe")
    assert allowed.code == 0, allowed.err

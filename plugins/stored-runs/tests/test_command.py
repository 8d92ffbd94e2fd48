"""`accel-bench results` lists, shows and explains what is stored."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml
from accel_bench_stored_runs.command import app
from accel_bench_stored_runs.view import MORE
from store.store_factory import (
    LONG,
    LORA,
    change_payload,
    make_result,
    make_session,
    store_three_runs,
    three_runs,
)
from typer.testing import CliRunner

from accel_bench.errors import StoreError
from accel_bench.machine.process_memory import Stage
from accel_bench.result import RankResult, Status
from accel_bench.store.database import open_store


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A results folder that the environment names."""
    store_three_runs(tmp_path)
    monkeypatch.setenv("ACCEL_BENCH_RESULTS", str(tmp_path))
    return tmp_path


def call(*arguments: str) -> str:
    """Output of a command that must succeed."""
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.usefixtures("folder")
def test_the_list_has_a_row_for_every_run_with_its_speed() -> None:
    printed = call("list")
    lines = {
        name: line
        for line in printed.splitlines()
        for name in ("run-a", "run-b", "run-c")
        if name in line
    }
    assert "200.0" in lines["run-a"]
    assert LORA.id in lines["run-b"]
    assert "oom" in lines["run-c"]
    assert "model.id=[/red]" in lines["run-c"]


@pytest.mark.usefixtures("folder")
def test_the_list_for_programs_holds_numbers_and_null_where_there_is_none() -> None:
    rows = json.loads(call("list", "--format", "json"))
    assert [row["run_id"] for row in rows] == ["run-a", "run-b", "run-c"]
    assert [row["tokens_per_second"] for row in rows] == [200.0, 200.0, None]
    assert rows[2]["sweep"] == {"model.id": "[/red]"}


@pytest.mark.usefixtures("folder")
def test_people_count_rounds_from_1_and_programs_from_0() -> None:
    numbers = [row["round"] for row in json.loads(call("list", "--format", "json"))]
    header, _, *rows = call("list").splitlines()
    place = header.index("round")
    assert [int(line[place:].split()[0]) - 1 for line in rows if line.strip()] == numbers


@pytest.mark.usefixtures("folder")
def test_the_list_has_the_same_columns_in_every_format() -> None:
    columns = list(json.loads(call("list", "--format", "json"))[0])
    assert call("list", "--format", "csv").splitlines()[0].split(",") == columns
    assert call("list", "--format", "markdown").splitlines()[0] == f"| {' | '.join(columns)} |"
    assert all(column in call("list") for column in columns)


@pytest.mark.parametrize("output", ["table", "json", "csv", "markdown"])
def test_a_damaged_row_is_listed_as_corrupt(folder: Path, output: str) -> None:
    change_payload(folder, "run-b", "2.13.0", "2.12.0")
    printed = call("list", "--format", output)
    assert printed.count("corrupt") == 1
    assert printed.count("run-b") == 1


def test_the_option_names_another_folder_than_the_environment(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    done = CliRunner().invoke(app, ["list", "--results", str(other)])
    assert isinstance(done.exception, StoreError)
    assert str(other) in str(done.exception)


def test_a_shown_run_says_what_was_run_how_it_ended_and_how_to_repeat_it(folder: Path) -> None:
    printed = call("show", "run-c")
    assert "stack:\n  name: long\n" in printed
    assert "asked for 2 GiB, 1 GiB free" in printed
    assert str(folder / "runs" / "monday" / "run-c" / "rank0.log") in printed
    assert "last line" in printed
    assert "\x1b" not in printed
    (repeat,) = (line for line in printed.splitlines() if line.startswith("repeat with: "))
    assert tuple(shlex.split(repeat.removeprefix("repeat with: "))) == three_runs()[2].command


@pytest.mark.usefixtures("folder")
def test_a_shown_run_prints_its_scenario_evidence_machine_and_samples_of_each_rank() -> None:
    printed = call("show", "run-a", "--all")
    what = yaml.safe_load(printed.split("\n\n")[0])
    assert what["scenario"] == LORA.scenario.model_dump(mode="json")
    assert what["plugins"] == [{"name": "lora", "distribution": "accel-bench", "version": "0.1.0"}]
    assert "host: bench-1" in printed
    assert "modules: 4" in printed
    assert len([line for line in printed.splitlines() if " warmup " in line]) == 2
    assert len([line for line in printed.splitlines() if " measured " in line]) == 4
    assert "1.000000" in printed
    assert "tokens_per_second: 200.0" in printed


@pytest.mark.usefixtures("folder")
def test_a_run_is_shown_in_brief_with_what_was_set_and_the_figures_that_are_known() -> None:
    printed, whole = call("show", "run-a"), call("show", "run-a", "--all")
    assert len(printed.splitlines()) < min(60, len(whole.splitlines()) / 2)
    assert {*printed.splitlines()} - {*whole.splitlines()} == {MORE}
    what = yaml.safe_load(printed.split("\n\n")[0])
    assert what["scenario"] == LORA.scenario.model_dump(mode="json", exclude_defaults=True)
    assert "tokens_per_second: 200.0" in printed and "repeat with: " in printed
    assert ": null" not in printed and " measured " not in printed


def test_a_shown_run_says_what_each_stage_did_to_memory_and_why_it_ended(tmp_path: Path) -> None:
    stages = (
        Stage(name="imports", seconds=1, host_bytes=100, host_peak_bytes=130),
        Stage(name="load_model", seconds=2, host_bytes=250, host_peak_bytes=260),
    )
    figures = {"bytes_asked": 2**31, "step_part": "backward", "bytes_reserved_unallocated": 7}
    error = {"type": "OutOfMemoryError", "message": "m", "traceback": "t", **figures}
    ended = RankResult(rank=0, status=Status.OOM, stages=stages, error=error)
    with open_store(tmp_path, write=True) as store:
        store.add_session(make_session())
        store.add(make_result("run-m", ranks=(ended,), status=Status.OOM))
    printed = call("show", "run-m", "--results", str(tmp_path))
    (part,) = [block for block in printed.split("\n\n") if block.startswith("run:")]
    (rank,) = yaml.safe_load(part)["ranks"]
    assert rank["error"].items() >= error.items()
    assert rank["memory_by_stage"] == [
        {"name": "before", "kind": "rss", "delta_bytes": 100, "peaked_delta_bytes": 30},
        {"name": "load", "kind": "rss", "delta_bytes": 150, "peaked_delta_bytes": 10},
    ]


@pytest.mark.usefixtures("folder")
def test_a_shown_experiment_prints_all_its_runs() -> None:
    printed = call("show", LORA.id[:8])
    assert printed.count("repeat with:") == 2
    assert "run-a" in printed
    assert "run-b" in printed
    assert "run-c" not in printed


@pytest.mark.usefixtures("folder")
def test_shown_json_is_the_stored_results() -> None:
    shown = json.loads(call("show", "monday", "--format", "json"))
    assert shown == [result.model_dump(mode="json") for result in three_runs()]


@pytest.mark.usefixtures("folder")
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", [("show", "\udcff"), ("list", "--where", "stack = \udcff")])
def test_a_text_that_is_no_utf8_is_named_and_not_looked_up(command: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, StoreError)
    assert "is not UTF-8 text" in str(done.exception)


@pytest.mark.usefixtures("folder")
def test_an_unknown_id_is_left_to_the_program_to_report() -> None:
    done = CliRunner().invoke(app, ["show", "run-d"])
    assert isinstance(done.exception, StoreError)
    assert "did you mean" in str(done.exception)


@pytest.mark.usefixtures("folder")
def test_why_prints_the_fields_of_the_identity_that_differ() -> None:
    printed = call("why", "run-a", LONG.id)
    assert "work.train.seed" in printed
    assert "environment.sweep.model.id" in printed
    assert "optimizer" not in printed


@pytest.mark.usefixtures("folder")
def test_why_says_when_nothing_differs() -> None:
    assert "nothing differs" in call("why", "run-a", "run-b")


@pytest.mark.usefixtures("folder")
def test_why_refuses_an_id_that_means_several_experiments() -> None:
    done = CliRunner().invoke(app, ["why", "monday", "run-a"])
    assert isinstance(done.exception, StoreError)
    assert "several experiments" in str(done.exception)


@pytest.mark.usefixtures("folder")
def test_conditions_groups_tags_and_notes_from_the_command_line() -> None:
    rows = json.loads(call("list", "--where", "status = oom or stack = long", "--format", "json"))
    assert [row["run_id"] for row in rows] == ["run-c"]
    rows = json.loads(call("list", "--group-by", "stack,status", "--format", "json"))
    assert [(row["stack"], row["status"], row["runs"]) for row in rows] == [
        ("long", "oom", 1),
        ("lora", "degraded", 1),
        ("lora", "ok", 1),
    ]
    assert "tokens_per_second_mean" in call("list", "--group-by", "stack")
    rows = json.loads(call("list", "--newest", "1", "--format", "json"))
    assert [row["run_id"] for row in rows] == ["run-c"]
    assert call("tag", LORA.id, "good", "night=ly") == "2 runs\n"
    assert call("note", "run-c", "needs a [b]larger[/b] GPU") == "1 run\n"
    listed = json.loads(call("list", "--where", "tags = good", "--format", "json"))
    assert [row["tags"] for row in listed] == [["good", "night=ly"]] * 2
    assert "needs a [b]larger[/b] GPU" in call("show", "run-c")
    call("tag", "--remove", "run-a", "good")
    listed = json.loads(call("list", "--where", "tags = good", "--format", "json"))
    assert [row["run_id"] for row in listed] == ["run-b"]
    refused = CliRunner().invoke(app, ["list", "--where", "stak = lora"])
    assert "did you mean 'stack'" in str(refused.exception)

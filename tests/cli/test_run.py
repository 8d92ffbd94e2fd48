"""`accel-bench run`: from options and files to a comparison, on an engine that needs no torch."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli.program import Done, call, write_nulls
from fault_plugins.distribution import install

from accel_bench.cli.request import parse_overrides
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import PlanRequest, make_plan
from accel_bench.scenario.find import read_draft
from accel_bench.store.database import open_store

KEYS = {
    "experiment_id",
    "stack",
    "sweep",
    "status",
    "reasons",
    "runs",
    "tokens_per_second",
    "ratio",
    "step_seconds",
    "peak_memory_bytes",
    "loss",
    "loss_verdict",
    "verdict",
    "tokens_per_second_per_device",
    "peak_memory_kind",
    "differs",
    "devices_used",
    "plugins",
    "evidence",
    "effective",
}
"""What every experiment of the document has; further keys may be added."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with the scenario `nulls.yaml`."""
    monkeypatch.chdir(tmp_path)
    write_nulls(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with one complete round of `nulls.yaml`; `--resume` only prints it."""
    folder = tmp_path_factory.mktemp("measured")
    scenario = write_nulls(folder)
    done = call("run", str(scenario), "-q", "--results", str(folder / "results"))
    assert done.code == 0, done.out
    return folder / "results"


def run(*arguments: str) -> Done:
    """Run `nulls.yaml`."""
    return call("run", "nulls.yaml", *arguments)


def show(measured: Path, output: str, *arguments: str) -> Done:
    """Print what has been measured, without measuring again."""
    return run("--resume", "--results", str(measured), "--format", output, *arguments)


def resolved(*arguments: str) -> dict[str, Any]:
    """The scenario of the first experiment that `run` would run with these `--set` options."""
    plan_request = PlanRequest(overrides=parse_overrides(arguments, {}))
    plan = make_plan(read_draft(Path("nulls.yaml")), read_machine(), plan_request)
    return plan.planned[0].experiment.scenario.model_dump(mode="json")


def document(*arguments: str) -> dict[str, Any]:
    """What `run --format json` prints; the run must succeed."""
    done = run("--format", "json", *arguments)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def plan(*arguments: str) -> dict[str, Any]:
    """What `run --dry-run --format json` prints; it must succeed."""
    return document("--dry-run", *arguments)


def stacks(found: dict[str, Any]) -> list[str]:
    """Names of the stacks, in order."""
    return [experiment["stack"] for experiment in found["experiments"]]


def stored() -> list[dict[str, Any]]:
    """All stored results."""
    with open_store(Path("accel_bench_results"), write=False) as store:
        return [result.model_dump(mode="json") for result in store.results()]


# What is printed.


def test_stored_runs_are_judged_by_what_compare_names(measured: Path) -> None:
    found = json.loads(show(measured, "json", "--compare", "peak_memory_bytes").out)
    quantities = [row["quantity"] for row in found["experiments"]]
    assert {one["name"] for one in quantities} == {"peak_memory_bytes"}
    base, other = (one["value"]["median"] for one in quantities)
    assert found["experiments"][1]["ratio"]["median"] == pytest.approx(base / other)
    unknown = show(measured, "table", "--compare", "peak_memory")
    assert unknown.code == 1
    assert "no completed run has peak_memory; did you mean 'peak_memory_bytes'?" in " ".join(
        unknown.out.split()
    )


def test_json_is_one_document_on_stdout_with_the_promised_keys(measured: Path) -> None:
    done = show(measured, "json")
    found = json.loads(done.out)
    assert done.code == 0
    assert {"schema_version", "scenario", "baseline", "experiments"} <= set(found)
    assert (found["scenario"], found["baseline"]) == ("nulls", "baseline")
    assert stacks(found) == ["baseline", "other"]
    for experiment in found["experiments"]:
        assert set(experiment) >= KEYS
        interval = {"median", "low", "high", "confidence"}
        assert set(experiment["tokens_per_second"]) == set(experiment["ratio"]) == interval
        assert set(experiment["step_seconds"]) == {"p50", "p90", "p95", "p99", "spread"}
        assert set(experiment["loss"]) == {"first", "last", "last_step"}
        assert {"name", "distribution", "version"} == set(experiment["plugins"][0])
        assert (experiment["status"], experiment["runs"]) == ("ok", 1)


def test_progress_stands_on_stderr_a_line_for_each_run_that_has_ended() -> None:
    done = run("--format", "json", "--rounds", "2")
    lines = done.err.splitlines()
    assert lines[0] == "nulls: 4 runs"
    assert len(lines) == 5
    assert all(line.startswith("round ") and " ok " in line for line in lines[1:])
    assert "tokens/s" in lines[1]
    assert "left)" in lines[1]
    assert "\x1b" not in done.err


@pytest.mark.parametrize("output", ["table", "json", "csv", "markdown"])
def test_quiet_prints_nothing_but_the_comparison(output: str, measured: Path) -> None:
    done = show(measured, output, "--quiet")
    assert done.err == ""
    assert "other" in done.out


def test_csv_has_a_row_for_each_experiment(measured: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(show(measured, "csv").out)))
    assert [row["stack"] for row in rows] == ["baseline", "other"]
    assert [row["status"] for row in rows] == ["ok", "ok"]


def test_markdown_is_a_table_with_as_many_cells_in_every_row(measured: Path) -> None:
    lines = show(measured, "markdown").out.splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 4
    assert len({line.count("|") for line in table}) == 1


def test_the_table_ends_with_a_sentence_and_says_where_the_results_lie(measured: Path) -> None:
    printed = show(measured, "table").out
    assert "no verdict against baseline for other" in " ".join(printed.split())
    assert f"Results: {measured}\n  accel-bench results list --results {measured}\n" in printed


def test_resume_does_not_run_a_complete_round_again(measured: Path) -> None:
    before = sorted(measured.glob("runs/*/*"))
    assert "nulls: 0 runs" in show(measured, "table").err
    assert sorted(measured.glob("runs/*/*")) == before


def test_a_job_that_is_run_again_continues_its_own_sessions_alone(
    folder: Path, measured: Path
) -> None:
    shutil.copytree(measured, folder / "results")
    again = ("run", "nulls.yaml", "--only", "baseline", "--results", "results")
    for runs in (1, 0):
        done = call(*again, ACCEL_BENCH_JOB="slurm-c-7")
        assert done.code == 0, done.err
        assert f"nulls: {runs} run" in done.err


def test_files_of_a_job_that_share_an_experiment_run_it_each(folder: Path) -> None:
    for name in ("first", "second"):
        write_nulls(folder, f"{name}.yaml", name=name)

    def runs(*names: str) -> list[str]:
        files = [f"{name}.yaml" for name in names]
        again = ("run", *files, "--only", "baseline", "--results", "shared")
        done = call(*again, ACCEL_BENCH_JOB="slurm-c-8")
        assert done.code == 0, done.err
        return [line for line in done.err.splitlines() if " run" in line and ":" in line]

    (planned,) = runs("first")  # as far as the job came before it was queued again
    assert "first: 1 run" in planned
    for expected in (1, 0):
        first, second = runs("first", "second")
        assert "first: 0 runs" in first
        assert f"second: {expected} run" in second


def test_a_round_is_measured_again_only_beside_those_that_are_stored(measured: Path) -> None:
    alone = run("--repeat-round", "1", "-q")
    assert alone.code == 2
    assert "--repeat-round 1 needs --resume" in alone.err
    unnamed = show(measured, "table", "--repeat-round", "1")
    assert unnamed.code == 2
    assert "no round has one" in " ".join(unnamed.err.split())


def test_a_slower_stack_ends_with_4_and_one_of_too_few_rounds_with_5(
    measured: Path, folder: Path
) -> None:
    few = show(measured, "json", "--fail-if-slower", "1%")
    assert (few.code, "1 of the 5 rounds" in few.err) == (5, True)
    text = (folder / "nulls.yaml").read_text(encoding="utf8")
    slow = yaml.safe_load(text) | {
        # A thousand times as slow is slower for certain, whatever else the machine does.
        "stacks": {"baseline": [], "slow": {"set": {"engine.step_seconds": 0.02}}},
    }
    (folder / "slow.json").write_text(json.dumps(slow), encoding="utf8")
    done = call("run", "slow.json", "--rounds", "5", "--fail-if-slower", "1%", "--format", "json")
    assert (done.code, json.loads(done.out)["experiments"][1]["verdict"]) == (4, "worse")
    assert "slow is slower than baseline by more than 1 %" in done.err


def test_a_gate_is_open_for_a_stack_that_is_skipped(folder: Path) -> None:
    write_nulls(folder, stacks="{baseline: [], far: {set: {resources.nodes: 2}}}")
    done = run("-q", "--fail-if-slower", "1%")
    assert done.code == 5, done.err
    open_one = "it is open whether far is slower than baseline by more than 1 %: was skipped; "
    assert f"{open_one}local: starts processes on one node" in done.err


def test_a_point_that_the_scenario_excludes_is_not_asked_of_the_gate(folder: Path) -> None:
    write_nulls(
        folder,
        engine="{use: null, step_seconds: 0.01}",
        stacks="{baseline: [], other: []}",
        sweep="{train.micro_batch_size: [1, 2]}",
        exclude="[{when: {train.micro_batch_size: 2}, because: too large}]",
    )
    done = run("-q", "--rounds", "5", "--fail-if-slower", "90%")
    assert "excluded" not in done.err and "too large" not in done.err
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("1%", "--no-baseline"), "needs the baseline"),
        (("1%", "--only", "baseline"), "and there is only the baseline"),
        (("1%", "--only", "baseline", "--dry-run"), "and there is only the baseline"),
        # Were the scenario read first, its name would be what is wrong.
        (("much", "no-such-scenario.yaml"), "--fail-if-slower 'much' is no fraction"),
    ],
)
def test_a_gate_that_could_not_judge_is_refused_before_anything_runs(
    folder: Path, arguments: tuple[str, ...], says: str
) -> None:
    done = run("--fail-if-slower", *arguments)
    assert (done.code, says in " ".join(done.err.split())) == (2, True), done.err
    assert not (folder / "accel_bench_results").exists()


@pytest.mark.box
@pytest.mark.parametrize("command", [("run",), ("gate", "--stack", "other")])
def test_one_of_several_programs_of_a_launcher_is_refused_at_once(
    measured: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert show(measured, "json").code == 0
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = call(command[0], "nulls.yaml", *command[1:], "-q")
    assert done.code == 2
    assert "started accel-bench 2 times" in done.err
    assert "--set resources.devices=2" in done.err
    assert "--set launcher.use=env" in done.err


# What is run.


def test_without_a_file_it_is_the_quickstart() -> None:
    done = call("run", "--dry-run", "--format", "json")
    assert json.loads(done.out)["scenario"] == "quickstart"


def test_a_shipped_scenario_is_run_by_its_name() -> None:
    by_name = call("run", "quickstart", "--dry-run", "--format", "json")
    assert json.loads(by_name.out)["scenario"] == "quickstart"


def test_several_files_give_a_list_with_a_document_each(folder: Path) -> None:
    write_nulls(folder, "second.yaml", name="second", stacks="{alone: []}")
    done = call("run", "nulls.yaml", "second.yaml", "-q", "--format", "json")
    assert [found["scenario"] for found in json.loads(done.out)] == ["nulls", "second"]
    assert done.code == 0


def test_a_folder_runs_its_scenarios_but_not_the_slow_ones(folder: Path) -> None:
    suite = folder / "suite"
    suite.mkdir()
    write_nulls(suite, "a.yaml", name="a")
    write_nulls(suite, "b.yaml", name="b", slow="true")
    write_nulls(suite, "c.yml", name="c")
    (suite / "notes.txt").write_text("no scenario")
    done = call("run", "suite", "--dry-run", "--format", "json")
    assert [found["scenario"] for found in json.loads(done.out)] == ["a", "c"]


def test_a_slow_scenario_runs_when_it_is_named(folder: Path) -> None:
    write_nulls(folder, "slow.yaml", name="slow", slow="true")
    assert call("run", "slow.yaml", "--dry-run").code == 0


def test_a_named_stack_beside_the_scenarios_of_a_folder_is_not_taken_for_one(
    folder: Path,
) -> None:
    suite = folder / "suite"
    suite.mkdir()
    write_nulls(suite, "a.yaml", name="a", stacks="{baseline: [], long: long}")
    (suite / "long.yaml").write_text("set: {train.seed: 3}\n")
    done = call("run", "suite", "--dry-run", "--format", "json")
    assert stacks(json.loads(done.out)) == ["baseline", "long"]


def test_a_folder_without_scenarios_is_refused(folder: Path) -> None:
    (folder / "empty").mkdir()
    done = call("run", "empty")
    assert done.code == 2
    assert "empty holds no scenario" in done.err


def test_one_wrong_file_of_several_stops_everything_before_it_starts(folder: Path) -> None:
    (folder / "wrong.yaml").write_text("nam: wrong\n")
    done = call("run", "nulls.yaml", "wrong.yaml")
    assert done.code == 2
    assert "wrong.yaml:1:1: unknown key 'nam'; did you mean 'name'?" in done.err
    assert not (folder / "accel_bench_results").exists()


def test_a_toml_scenario_gives_the_same_experiments_as_its_yaml_form(folder: Path) -> None:
    (folder / "nulls.toml").write_text(
        'name = "nulls"\nmodel = "null"\ndata = {use = "null", sequence_length = 16}\n'
        'optimizer = "null"\nengine = "null"\n[stacks]\nbaseline = []\nother = []\n'
        "[measure]\nwarmup = 1\nsteps = 2\nrounds = 1\n"
    )
    toml = json.loads(call("run", "nulls.toml", "--dry-run", "--format", "json").out)
    assert toml["experiments"] == plan()["experiments"]


# --set and its short forms.


@pytest.mark.parametrize(
    ("assignment", "key", "value"),
    [
        ("train.learning_rate=2e-4", ("train", "learning_rate"), 2e-4),
        ("train.gradient_checkpointing=true", ("train", "gradient_checkpointing"), True),
        ("train.max_grad_norm=null", ("train", "max_grad_norm"), None),
        ("model.dtype=bfloat16", ("model", "dtype"), "bfloat16"),
        ("model.overrides.num_hidden_layers=2", ("model", "overrides"), {"num_hidden_layers": 2}),
        ("engine.step_seconds=0.001", ("engine", "step_seconds"), 0.001),
        ("metrics=[]", ("metrics",), []),
        ("resources={threads: 1}", ("resources", "threads"), 1),
        ("environment.OMP_NUM_THREADS='2'", ("environment", "OMP_NUM_THREADS"), "2"),
    ],
)
def test_set_changes_a_key_of_the_work(assignment: str, key: tuple[str, ...], value: Any) -> None:
    found: Any = resolved(assignment)
    for part in key:
        found = found[part]
    assert found == value


def test_set_and_its_short_forms_reach_the_measurement() -> None:
    document("--rounds", "1", "--timeout", "77", "--device", "cpu", "--set", "measure.steps=3")
    scenario = stored()[0]["experiment"]["scenario"]
    assert len(stored()[0]["ranks"][0]["window"]["samples"]) == 3
    assert scenario["measure"]["timeout_seconds"] == 77
    assert scenario["measure"]["steps"] == 3
    assert scenario["resources"]["device"] == "cpu"


def test_a_short_form_wins_over_set() -> None:
    assert plan("--set", "measure.rounds=7", "--rounds", "2")["runs"] == 4


def test_set_reaches_an_option_of_a_plugin_in_a_stack() -> None:
    arguments = ("--set", "stacks.other=[torch-compile]", "--set")
    default = plan(*arguments[:2])
    changed = plan(*arguments, "stacks.other.torch-compile.dynamic=true")
    assert stacks(changed) == ["baseline", "other"]
    assert changed["experiments"][1]["differs"] == "torch-compile(dynamic=true)"
    ids = [found["experiments"][1]["experiment_id"] for found in (default, changed)]
    assert ids[0] != ids[1]


def test_set_can_replace_all_stacks_in_their_short_spelling() -> None:
    assert stacks(plan("--set", "stacks={a: [], b: [torch-compile], c: null}")) == ["a", "b", "c"]


def test_set_can_sweep() -> None:
    found = plan("--set", "sweep.train.seed=[1,2]")
    seeds = [row["sweep"]["train.seed"] for row in found["experiments"]]
    assert seeds == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("measure.steps", "--set measure.steps: expected KEY=VALUE"),
        ("=3", "expected KEY=VALUE"),
        ("measure.stepz=3", "did you mean 'steps'?"),
        ("measure.steps=many", "measure.steps"),
        ("measure.steps=1.5", "measure.steps"),
        ("measure.steps=true", "measure.steps"),
        ("measure.steps=.nan", "--set measure.steps"),
        ("measure..steps=3", "is not a dotted key"),
        ("measure.steps.x=3", "'steps' holds a value"),
        ("train.seed=[1", "--set train.seed"),
        ("stacks.othr.torch-compile.mode=x", "did you mean 'other'?"),
        ("stacks.other.torch-compile.mode=x", "does not use the plugin 'torch-compile'"),
        ("environment.LD_PRELOAD=/x.so", "--allow-env"),
    ],
)
def test_a_wrong_override_is_named_and_nothing_starts(
    assignment: str, message: str, folder: Path
) -> None:
    done = run("--set", assignment)
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert message in done.err
    assert not (folder / "accel_bench_results").exists()


def test_a_wrong_option_names_the_plugin_and_the_nearest_option() -> None:
    done = run("--set", "engine.step_second=1")
    assert done.code == 2
    assert "plugin 'null' (as engine): unknown key 'step_second'; did you mean" in done.err


# --plugin, --only and the baseline.


def test_plugin_adds_a_stack_of_its_name() -> None:
    found = plan("--plugin", "torch-compile")
    assert stacks(found) == ["baseline", "other", "torch-compile"]
    assert found["experiments"][2]["differs"] == "torch-compile"


def test_plugin_adds_one_stack_of_two_plugins_in_that_order() -> None:
    found = plan("--plugin", "example+torch-compile")
    assert stacks(found)[-1] == "example+torch-compile"
    assert found["experiments"][2]["differs"] == "example, torch-compile"


def test_plugin_can_be_repeated() -> None:
    assert stacks(plan("--plugin", "example", "--plugin", "torch-compile"))[2:] == [
        "example",
        "torch-compile",
    ]


def test_the_stack_of_a_plugin_takes_options_from_set() -> None:
    option = "stacks.torch-compile.torch-compile.dynamic=true"
    found = plan("--plugin", "torch-compile", "--set", option)
    assert found["experiments"][2]["differs"] == "torch-compile(dynamic=true)"


def test_a_plugin_is_compared_with_the_plain_work_where_the_file_has_no_stack(
    folder: Path,
) -> None:
    text = (folder / "nulls.yaml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("stacks")]
    (folder / "nulls.yaml").write_text("\n".join(lines))
    assert stacks(plan("--plugin", "torch-compile")) == ["baseline", "torch-compile"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torch-compiel", "no plugin is called 'torch-compiel'; did you mean 'torch-compile'?"),
        ("compile", "did you mean 'torch-compile'?"),
        ("example+exampl", "no plugin is called 'exampl'; did you mean 'example'?"),
        ("example+example", "uses 'example' twice"),
        ("example+", "no plugin is called ''"),
    ],
)
def test_a_plugin_that_cannot_be_used_ends_with_2_before_anything_starts(
    name: str, message: str, folder: Path
) -> None:
    done = run("--plugin", name)
    assert done.code == 2
    assert message in done.err
    assert not (folder / "accel_bench_results").exists()


def test_only_runs_the_stack_and_the_baseline() -> None:
    assert stacks(plan("--plugin", "example", "--only", "example")) == ["baseline", "example"]


def test_only_may_name_the_stack_of_one_scenario() -> None:
    work = {"model": "null", "data": "null", "optimizer": "null", "engine": "null"}
    other = {"plain": [], "seeded": {"set": {"train.seed": 3}}}
    several = {
        "defaults": {**work, "stacks": other},
        "scenarios": [{"name": "one"}, {"name": "two"}],
    }
    Path("several.yaml").write_text(yaml.safe_dump(several))
    done = call("run", "several.yaml", "--dry-run", "--only", "two/seeded")
    assert done.code == 0, done.err
    assert "two:" in done.out and "seeded" in done.out
    assert "one:" not in done.out
    wrong = call("run", "several.yaml", "--dry-run", "--only", "too/seeded")
    assert wrong.code == 2
    assert "no scenario is called 'too'; did you mean 'two'?" in wrong.err


def test_only_can_be_repeated_and_keeps_the_written_order() -> None:
    found = plan("--plugin", "example", "--only", "example", "--only", "other")
    assert stacks(found) == ["baseline", "other", "example"]


def test_an_unknown_stack_is_answered_with_the_nearest() -> None:
    done = run("--only", "othr")
    assert done.code == 2
    assert "no stack is called 'othr'; did you mean 'other'?" in done.err


def test_without_the_baseline_there_is_no_ratio_and_the_reason_is_given() -> None:
    found = document("--no-baseline", "-q")
    (experiment,) = found["experiments"]
    assert found["baseline"] == "baseline"
    assert experiment["stack"] == "other"
    assert experiment["ratio"] is None
    assert experiment["verdict_reason"] == "the baseline was not run"


def test_no_baseline_and_no_other_stack_is_refused(folder: Path) -> None:
    write_nulls(folder, stacks="{alone: []}")
    done = run("--no-baseline")
    assert done.code == 2
    assert "leaves no stack" in done.err


def test_a_plan_of_more_runs_than_allowed_is_refused_with_its_size(folder: Path) -> None:
    done = run("--rounds", "600")
    assert done.code == 2
    assert "1,200 runs" in done.err
    assert "--max-runs" in done.err
    assert run("--rounds", "600", "--max-runs", "1200", "--dry-run").code == 0
    assert not (folder / "accel_bench_results").exists()


# Exit codes.


def broken(folder: Path, error: str = "RuntimeError") -> tuple[str, str]:
    """Install a plugin that fails in its first hook; return its name and where it is installed."""
    site = folder / "site"
    site.mkdir()
    source = (
        "from accel_bench import Plugin, hookimpl\n"
        "from accel_bench.errors import ScenarioError\n"
        "class Broken(Plugin):\n"
        "    '''Fails.'''\n"
        "    @hookimpl\n"
        "    def prepare_process(self, run):\n"
        f"        raise {error}('no such luck')\n"
    )
    install(site, "accel-bench-broken", {"broken": "Broken"}, source)
    return "broken", str(site)


def test_a_stack_that_fails_ends_with_1_and_the_others_are_measured(
    folder: Path,
) -> None:
    name, site = broken(folder)
    done = call("run", "nulls.yaml", "--plugin", name, "--format", "json", "-q", PYTHONPATH=site)
    rows = {row["stack"]: row for row in json.loads(done.out)["experiments"]}
    assert done.code == 1
    assert rows["broken"]["status"] == "plugin_error"
    assert "accel-bench-broken" in rows["broken"]["reasons"][0]
    assert rows["broken"]["tokens_per_second"] is None
    assert rows["other"]["status"] == "ok"


def test_under_a_table_stand_the_last_lines_of_a_failed_run_s_log_and_their_path(
    folder: Path,
) -> None:
    name, site = broken(folder)
    arguments = ("run", "nulls.yaml", "--plugin", name, "--only", name, "-q")
    done = call(*arguments, COLUMNS="200", PYTHONPATH=site)
    assert "broken: plugin_error; log in" in done.out
    assert "RuntimeError: no such luck" in done.out
    (path,) = [line for line in done.out.splitlines() if line.strip().startswith(str(folder))]
    assert "no such luck" in (Path(path.strip()) / "rank0.log").read_text()


def test_of_an_error_that_says_all_the_sentence_is_shown_and_the_traceback_is_in_the_log(
    folder: Path,
) -> None:
    name, site = broken(folder, "ScenarioError")
    arguments = ("run", "nulls.yaml", "--plugin", name, "--only", name, "-q")
    done = call(*arguments, COLUMNS="200", PYTHONPATH=site)
    shown = done.out[done.out.index("broken: failed; log in") :].splitlines()
    assert [line for line in shown if line.startswith("  |")] == ["  | no such luck"]
    assert "Traceback" not in done.out + done.err
    log = (Path(shown[1].strip()) / "rank0.log").read_text()
    assert "Traceback" in log and "ScenarioError: no such luck" in log


def test_an_environment_variable_outside_the_list_needs_the_option() -> None:
    assignment = ("--set", "environment.MY_VARIABLE=on", "--dry-run")
    assert run(*assignment).code == 2
    assert run(*assignment, "--allow-env").code == 0


def test_when_nothing_can_run_it_ends_with_3_and_the_reason() -> None:
    done = run("--set", "resources.nodes=2")
    assert done.code == 3
    assert "2 are asked for" in done.err


def test_a_scenario_that_cannot_run_is_reported_beside_one_that_can(folder: Path) -> None:
    write_nulls(folder, "two.yaml", name="two", resources="{nodes: 2}")
    done = call("run", "nulls.yaml", "two.yaml", "--dry-run", "--format", "json")
    assert done.code == 0
    runs, does_not = json.loads(done.out)
    assert {row["status"] for row in runs["experiments"]} == {"planned"}
    assert {row["status"] for row in does_not["experiments"]} == {"skipped"}
    assert "starts processes on one node" in does_not["experiments"][0]["reasons"][0]


def test_a_stack_asked_for_by_name_that_cannot_run_ends_with_2() -> None:
    nodes = "stacks.other={set: {resources.nodes: 2}}"
    assert run("--dry-run", "--set", nodes).code == 0
    done = run("--dry-run", "--set", nodes, "--only", "other")
    assert done.code == 2
    assert "stack 'other' cannot run here" in done.err


# What a run leaves behind.


def test_the_scenario_in_a_run_s_folder_gives_the_same_experiment_again(folder: Path) -> None:
    first = document("-q", "--set", "sweep.train.seed=[3]", "--only", "other")
    (written,) = folder.glob("accel_bench_results/runs/*/seed_3/*-other-*/scenario.yaml")
    again = json.loads(call("run", str(written), "--dry-run", "--format", "json").out)
    (planned,) = again["experiments"]
    assert planned["experiment_id"] == first["experiments"][1]["experiment_id"]


def test_the_environment_names_the_results_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCEL_BENCH_RESULTS", str(folder / "elsewhere"))
    run("-q")
    assert (folder / "elsewhere").is_dir()
    assert not (folder / "accel_bench_results").exists()

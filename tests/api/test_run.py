"""`accel_bench.run`: what `accel-bench run` does, from Python."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli.program import NULLS, call, write_nulls

import accel_bench
from accel_bench import Results, RunProgress
from accel_bench.errors import (
    AccelBenchError,
    NothingToRunError,
    PluginError,
    ScenarioError,
    StoreError,
)
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import PlanRequest, make_plan, scenario_of
from accel_bench.result import Status
from accel_bench.scenario.find import find_drafts

SCENARIO: dict[str, Any] = yaml.safe_load(NULLS)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("api") / "results"


@pytest.fixture(scope="module")
def seen() -> list[RunProgress]:
    """What `on_progress` was called with."""
    return []


@pytest.fixture(scope="module")
def results(place: Path, seen: list[RunProgress]) -> Results:
    """Two runs of a scenario without torch."""
    return accel_bench.run(SCENARIO, results=place, on_progress=seen.append)


def test_the_results_are_the_stored_runs_with_their_comparison(
    results: Results, place: Path
) -> None:
    assert [run.status for run in results] == [Status.OK, Status.OK]
    assert {run.experiment.stack.name for run in results} == {"baseline", "other"}
    assert [row.stack for row in results.rows] == ["baseline", "other"]
    assert results.summary.baseline == "baseline"
    assert results.conclusion.startswith("no verdict against baseline for other")
    assert results.ids == tuple(run.run_id for run in results)
    assert (results.exit_code, results.folder) == (0, place.resolve())
    assert list(accel_bench.open_store(place).select(results.sessions[0])) == list(results)
    assert results.conclusion in repr(results)


def test_the_program_prints_the_same_document_of_the_same_runs(
    results: Results, place: Path, tmp_path: Path
) -> None:
    file = write_nulls(tmp_path)
    printed = call(
        *("run", str(file), "--resume", "--results", str(place)), "--format", "json", "--quiet"
    )
    again = accel_bench.run(file, results=place, resume=True)
    assert set(again.ids) == set(results.ids)  # nothing was run anew
    assert json.loads(printed.out) == json.loads(again.to_json())


def test_progress_says_what_runs_and_how_much_is_done(
    results: Results, seen: list[RunProgress]
) -> None:
    assert (seen[0].event, seen[0].scenario, seen[0].runs, seen[0].ended) == (
        *("planned", "nulls"),
        *(2, 0),
    )
    assert seen[0].estimated_seconds is None  # nothing of it has run here before
    started = [one for one in seen if one.event == "started"]
    assert {one.stack for one in started} == {"baseline", "other"}
    assert {one.what for one in started} == {"round 1 of 1"}
    ended = [one for one in seen if one.event == "ended"]
    assert [one.ended for one in ended] == [1, 2]
    assert {one.result.run_id for one in ended if one.result} == set(results.ids)


def test_a_frame_has_a_row_for_each_run_as_the_store_has_it(results: Results, place: Path) -> None:
    frame = results.frame()
    assert list(frame["run_id"]) == list(results.ids)
    assert list(frame["train.learning_rate"]) == [1e-3, 1e-3]
    assert list(frame["status"]) == ["ok", "ok"]
    assert (frame["tokens_per_second"] > 0).all()
    assert (frame["metrics.run_peak_rss_bytes_rss_rank0"] > 0).all()
    stored = accel_bench.open_store(place).frame(where=f"session = {results.sessions[0]}")
    assert stored.equals(frame)


def test_a_scenario_is_a_path_a_name_a_mapping_or_a_model(tmp_path: Path) -> None:
    machine = read_machine()

    def ids(source: Any) -> list[str]:
        plans = [make_plan(draft, machine, PlanRequest()) for draft in find_drafts([source])]
        return [one.experiment.id for plan in plans for one in plan.planned]

    file = write_nulls(tmp_path)
    (plan,) = [make_plan(draft, machine, PlanRequest()) for draft in find_drafts([file])]
    resolved = plan.planned[0].experiment.scenario
    written = scenario_of(plan.planned[0])
    assert ids(file) == ids(str(file)) == ids(SCENARIO) == ids(tmp_path)
    assert ids(resolved) == ids(written) == ids(file)[:1]
    assert ids(plan.file) == ids(file)
    based = {"extends": "noise-floor", "measure": {"rounds": 3}}
    assert find_drafts([based])[0].get("stacks") == find_drafts(["noise-floor"])[0].get("stacks")


@pytest.mark.parametrize(
    ("call_of", "error", "message"),
    [
        ({"scenario": "quikstart"}, ScenarioError, "did you mean 'quickstart'"),
        ({"scenario": 3}, ScenarioError, "no int"),
        ({"scenario": {"data": {"seed": object()}}}, ScenarioError, "object"),
        ({"scenario": {"extends": "nothing"}}, ScenarioError, "no file beside this one"),
        ({"overrides": {"measure.stepz": 1}}, ScenarioError, "did you mean 'steps'"),
        ({"rounds": 0}, ScenarioError, "measure.rounds"),
        ({"stacks": "other"}, ScenarioError, r"such as \['other'\]"),
        ({"stacks": ["othr"]}, ScenarioError, "did you mean 'other'"),
        ({"plugins": ["autogptqq"]}, PluginError, "did you mean 'autogptq'"),
        ({"retries": -1}, ScenarioError, "retries: "),
        ({"repeat_round": 1}, ScenarioError, "resume=True"),
        ({"retry": 1}, TypeError, "did you mean 'retries'"),
        pytest.param(
            {"overrides": {"launcher.use": "skypilot"}, "device": "cpu"},
            ScenarioError,
            "use `accel-bench run`",
            marks=pytest.mark.box,
        ),
    ],
)
def test_what_is_refused_is_an_exception_and_leaves_nothing(
    call_of: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    place = tmp_path / "results"
    with pytest.raises(error, match=message):
        accel_bench.run(**{"scenario": SCENARIO, "results": place, **call_of})
    assert not place.exists()


def test_a_plan_of_which_nothing_can_run_is_an_exception(tmp_path: Path) -> None:
    excluded = {**SCENARIO, "exclude": [{"when": {"train.seed": 0}, "because": "of the seed"}]}
    with pytest.raises(NothingToRunError, match="of the seed"):
        accel_bench.run(excluded, results=tmp_path / "results")


def test_stacks_may_be_given_beside_the_scenario(tmp_path: Path) -> None:
    (draft,) = find_drafts([SCENARIO])
    (planned, *_) = make_plan(draft, read_machine(), PlanRequest()).planned
    stacks = {"plain": [], "again": {"set": {"train.seed": 7}}}
    found = accel_bench.run(planned.experiment.scenario, stacks=stacks, results=tmp_path)
    assert {run.experiment.stack.name: run.experiment.scenario.train.seed for run in found} == {
        "plain": 0,
        "again": 7,
    }


def test_a_run_that_fails_is_a_row_with_its_reason(tmp_path: Path) -> None:
    long = {**SCENARIO, "measure": {"warmup": 1, "steps": 30_000, "rounds": 1}}
    found = accel_bench.run(long, stacks=["baseline"], results=tmp_path, timeout=0.001)
    assert found.exit_code == 1
    assert found[0].status in (Status.TIMEOUT, Status.HUNG)
    assert found[0].reasons
    assert "no experiment completed" in found.conclusion


@pytest.mark.parametrize("ctrl_c", [False, True])
def test_a_session_that_is_ended_is_stored_and_the_cause_is_raised(
    ctrl_c: bool, tmp_path: Path
) -> None:
    def end(progress: RunProgress) -> None:
        if progress.event == "running":
            if ctrl_c:
                os.kill(os.getpid(), signal.SIGINT)
            raise LookupError("enough")

    long = {**SCENARIO, "measure": {"warmup": 1, "steps": 30_000, "rounds": 1}}
    with pytest.raises(KeyboardInterrupt if ctrl_c else LookupError):
        accel_bench.run(long, results=tmp_path, on_progress=end)
    assert [run.status for run in accel_bench.open_store(tmp_path).select()] == [Status.INTERRUPTED]


def test_a_frame_without_pandas_names_the_extra(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(AccelBenchError, match=r"pip install 'accel-bench\[pandas\]'"):
        results.frame()


def test_a_program_prints_nothing_and_has_no_torch(tmp_path: Path) -> None:
    program = "\n".join(
        [
            "import sys",
            "import accel_bench",
            f"found = accel_bench.run({SCENARIO!r}, stacks=['baseline'])",
            "heavy = {'torch', 'transformers', 'peft', 'pandas'} & {*sys.modules}",
            "assert not heavy, heavy",
            "assert len(found) == 1",
        ]
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "accel_bench_results").is_dir()


def test_no_results_is_an_error_when_the_store_is_opened(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there are no results"):
        accel_bench.open_store(tmp_path)

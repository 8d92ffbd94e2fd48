"""`accel-bench op`: installed benchmarks, cells, and real runs."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from accel_bench_op import engine_impl
from accel_bench_op.command import ANSWERS
from accel_bench_op.document import OperationCell, OperationReport
from accel_bench_op.engine import Op, OpOptions
from accel_bench_op.scenarios import CellChoice, cell_scenarios
from accel_bench_op.view import operations_report
from cli.program import call, start, surroundings, write_nulls
from kit import run_in_process
from whole_tables import assert_whole

from accel_bench.analysis.quantity import Quantity
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.summary import exit_code
from accel_bench.catalog.hardware import named_hardware
from accel_bench.errors import ScenarioError
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import PlanRequest, make_plan
from accel_bench.report.formats import render_report
from accel_bench.result import Result, Status
from accel_bench.scenario.find import find_drafts

from .distribution import install, install_operations


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a third party's distribution."""
    folder = tmp_path_factory.mktemp("site")
    install_operations(folder)
    return folder


@pytest.fixture
def acme(site: Path, tmp_path: Path) -> Iterator[Path]:
    """The third party's distribution, installed for this process."""
    with surroundings(tmp_path, {"PYTHONPATH": str(site)}):
        yield tmp_path


def measured(folder: Path, executor: str, compute_type: str, size: str = "tiny") -> Result:
    """Measure one cell of acme's benchmark in this process."""
    choice = CellChoice(
        names=["acme_scale"], executors=[executor], sizes=[size], compute_types=[compute_type]
    )
    (draft,) = find_drafts(cell_scenarios(choice))
    request = PlanRequest(overrides=(("measure.steps", 5), ("measure.warmup", 2)))
    plan = make_plan(draft, read_machine(), request)
    planned = next(p for p in plan.runnable if p.experiment.stack.name == executor)
    return run_in_process(planned, folder).result


def metrics_of(result: Result) -> dict[str, Any]:
    return {one.name: one.value for one in result.ranks[0].metrics}


def test_a_third_party_s_benchmark_and_executors_are_listed_with_the_reason_why_not(
    acme: Path,
) -> None:
    found = json.loads(call("op", "list", "--format", "json").out)
    entry = next(one for one in found if one["benchmark"] == "acme_scale")
    assert entry["distribution"] == "acme-operations 2.0"
    assert entry["sizes"] == ["tiny", "wide", "huge"]
    assert entry["compute_types"] == ["inference", "forward", "backward"]
    executors = {one["executor"]: one for one in entry["executors"]}
    assert executors["eager"]["runs"] and executors["eager"]["distribution"].startswith("accel-b")
    assert executors["acme-sound"] == {
        "executor": "acme-sound",
        "distribution": "acme-operations 2.0",
        "has_kernel": True,
        "runs": True,
        "reason": "",
    }
    assert "pip install acme-kernels" in executors["acme-absent"]["reason"]


def test_a_list_for_people_and_for_spreadsheets(acme: Path) -> None:
    everything = call("op", "list").out
    assert max(map(len, everything.splitlines())) <= 100
    assert "tiny ..." in everything and "llama-2-70b, llama-3-8b" not in everything
    table = call("op", "list", "acme_scale").out
    assert "acme_scale" in table and "acme-absent needs acme-kernels" in table
    assert "| acme_scale" in call("op", "list", "acme_scale", "--format", "markdown").out
    rows = list(csv.DictReader(io.StringIO(call("op", "list", "--format", "csv").out)))
    row = next(one for one in rows if one["executor"] == "acme-absent")
    assert (row["runs"], row["executor_distribution"]) == ("False", "acme-operations 2.0")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["acme_scal"], "no benchmark 'acme_scal'; did you mean 'acme_scale'?"),
        (["acme_scale", "--executor", "acme-soun"], "did you mean 'acme-sound'?"),
        (["acme_scale", "--size", "tin"], "has no size 'tin'; did you mean 'tiny'?"),
        (["acme_scale", "--compute-type", "backwards"], "did you mean 'backward'?"),
    ],
)
def test_what_is_not_known_is_an_error_with_the_nearest_name(
    acme: Path, arguments: list[str], hint: str
) -> None:
    done = call("op", "run", *arguments)
    assert done.code == 2
    assert hint in done.err


BREAKS = """
from accel_bench_op import Benchmark

class Broken(Benchmark):
    name = "broken_here"

    def __init__(self):
        raise RuntimeError("no licence")

    def make_batch(self):
        return (), {}

    def fn(self):
        return abs
"""


def test_a_broken_distribution_is_named_and_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = {
        "accel_bench.micro": {"gone": "stranger_gone", "all": "stranger_micro"},
        "accel_bench.executors": {"eager": "stranger_micro:Broken"},
    }
    install(tmp_path, entries, BREAKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "stranger_micro", raising=False)
    done = call("op", "list", "--format", "json")
    brought = "the benchmark 'gone' of stranger-micro 1.0 is broken: ModuleNotFoundError"
    assert f"warning: {brought}" in done.err
    assert "warning: the executor 'stranger-micro:eager' of stranger-micro 1.0 is b" in done.err
    entries = {one["benchmark"]: one for one in json.loads(done.out)}
    assert entries["gone"]["problem"].startswith(brought)
    assert entries["gone"]["distribution"] == "stranger-micro 1.0"
    # What fails only when it is built says so, and is no error of the others.
    reasons = {one["reason"] for one in entries["broken_here"]["executors"]}
    assert "benchmark broken_here under executor eager raises RuntimeError: no licence" in reasons
    assert entries["rms_norm"]["problem"] == "" and entries["rms_norm"]["executors"][0]["runs"]
    assert brought in call("op", "list").out
    refused = call("op", "run", "gone")
    assert refused.code == 2
    assert brought in refused.err
    text = call("op", "show", "rms_norm", "--executor", "eager").out
    assert yaml.safe_load(text)["engine"]["benchmark"] == "rms_norm"


@pytest.mark.box
def test_no_other_command_imports_a_stranger_s_benchmarks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may import torch, which only `op` and its scenarios put up with in the parent."""
    install(tmp_path, {"accel_bench.micro": {"all": "stranger_micro"}}, "raise SystemExit(3)")
    monkeypatch.delitem(sys.modules, "stranger_micro", raising=False)  # of the test before
    scenario = str(write_nulls(tmp_path))
    for command in (["plugins"], ["scenarios", "list"], ["run", scenario, "--dry-run"]):
        done = call(*command, PYTHONPATH=str(tmp_path))
        assert (done.code, "stranger" in done.out + done.err) == (0, False), done
    assert "SystemExit: 3" in call("op", "list", "rms_norm", PYTHONPATH=str(tmp_path)).err


def test_what_a_device_cannot_train_is_skipped_with_the_reason() -> None:
    (entry,) = json.loads(call("op", "list", "flex_attention", "--format", "json").out)
    assert entry["compute_types"] == ["inference"]
    for found in cell_scenarios(CellChoice(names=["flex_attention"], executors=["inductor"])):
        plan = make_plan(find_drafts([found])[0], read_machine(), PlanRequest())
        reasons = {one.skipped for one in plan.planned}
        trains = found["engine"]["compute_type"] != "inference"
        why = ("op: benchmark flex_attention has no backward pass on cpu",)
        assert reasons == ({why} if trains else {()})


def test_a_cell_is_planned_for_the_device_and_the_dtype_that_it_runs_with(acme: Path) -> None:
    def obstacles(benchmark: str, executor: str, device: str, dtype: str) -> list[str]:
        choice = CellChoice(names=[benchmark], executors=[executor], dtype=dtype)
        plan = make_plan(find_drafts(cell_scenarios(choice))[0], read_machine(), PlanRequest())
        (experiment,) = (p.experiment for p in plan.planned if p.experiment.stack.name == executor)
        resources = experiment.scenario.resources.model_copy(update={"device": device})
        scenario = experiment.scenario.model_copy(update={"resources": resources})
        options = OpOptions.model_validate(scenario.engine.options)
        there: Any = experiment.model_copy(update={"scenario": scenario})
        return list(Op(options).check_scenario(there, read_machine()))

    assert obstacles("acme_scale", "acme-half", "cuda", "bfloat16") == []
    assert "float32" in obstacles("acme_scale", "acme-half", "cuda", "float32")[0]
    assert "cpu" in obstacles("acme_scale", "acme-half", "cpu", "bfloat16")[0]
    assert "no float32 on a GPU" in obstacles("flash_attention", "inductor", "cuda", "float32")[0]
    for dtype, chosen in (("bfloat16", True), ("float32", False)):
        choice = CellChoice(names=["acme_scale"], device="cuda", dtype=dtype)
        assert ("acme-half" in cell_scenarios(choice)[0]["stacks"]) == chosen


def test_a_size_that_is_not_known_is_a_problem_of_the_scenario(acme: Path) -> None:
    (found, *_) = cell_scenarios(CellChoice(names=["acme_scale"], executors=["eager"]))
    found["engine"]["size"] = "tin"
    plan = make_plan(find_drafts([found])[0], read_machine(), PlanRequest())
    (why,) = plan.planned[0].skipped
    assert why == "op: benchmark 'acme_scale' has no size 'tin'; did you mean 'tiny'?"


def test_one_benchmark_without_a_backward_pass_is_one() -> None:
    with pytest.raises(ScenarioError, match="adamw_step has no backward pass"):
        cell_scenarios(CellChoice(names=["adamw_step"], compute_types=["backward"]))


def test_all_executors_are_those_that_have_a_kernel(acme: Path) -> None:
    (found, *_) = cell_scenarios(CellChoice(names=["acme_scale"], executors=["all"]))
    assert {"eager", "acme-sound", "acme-absent", "thunder"} <= found["stacks"].keys()
    assert next(iter(found["stacks"])) == "eager"


def test_cells_are_scenarios_whose_stacks_are_executors(acme: Path) -> None:
    found = cell_scenarios(CellChoice(names=["acme_scale"], executors=["acme-sound"]))
    assert [one["name"] for one in found] == [
        "acme_scale.inference.tiny",
        "acme_scale.forward.tiny",
        "acme_scale.backward.tiny",
    ]
    assert list(found[0]["stacks"]) == ["eager", "acme-sound"]
    every = cell_scenarios(CellChoice(names=["acme_scale"], sizes=["all"], calls=7))
    assert len(every) == 9
    assert "acme-absent" not in every[0]["stacks"]
    assert [one["train"]["micro_batch_size"] for one in every[:3]] == [7, 7, 1]
    with pytest.raises(ScenarioError, match="no benchmark"):
        cell_scenarios(CellChoice(names=["acme"]))


def test_a_cell_prints_as_a_scenario_that_can_be_planned(acme: Path) -> None:
    text = call("op", "show", "acme_scale", "--executor", "acme-absent").out
    assert yaml.safe_load(text)["engine"]["benchmark"] == "acme_scale"
    Path("cell.yaml").write_text(text, encoding="utf8")
    plan = make_plan(find_drafts(["cell.yaml"])[0], read_machine(), PlanRequest())
    assert [one.experiment.stack.name for one in plan.runnable] == ["eager"]
    assert "pip install acme-kernels" in plan.planned[1].skipped[0]


def test_a_backward_pass_is_timed_alone_and_its_gradients_are_checked(acme: Path) -> None:
    result = measured(acme, "acme-sound", "backward")
    assert result.status is Status.OK, result.reasons
    rank = result.ranks[0]
    assert rank.window is not None
    assert rank.window.left_out_seconds > 0
    assert rank.window.seconds < rank.window.ended - rank.window.started
    assert [one.real_tokens for one in rank.window.samples] == [1] * 5
    check: Any = rank.evidence["op"]["check"]  # type: ignore[index, call-overload]
    assert check["tensors"] == 3
    assert check["largest"] <= check["tolerance"]
    assert check["size"] == "tiny"
    figures = metrics_of(result)
    assert figures["flops_per_second"] > 0
    assert figures["bytes_per_second"] > 0
    assert 0 < figures["fraction_of_roofline"] < 1.5
    assert figures["call_peak_bytes"] > 0


@pytest.mark.parametrize(
    ("executor", "compute_type", "what"),
    [
        ("acme-wrong", "inference", "output is off by"),
        ("acme-wrong-gradient", "forward", "gradient of weight is off by"),
        ("acme-wrong-gradient", "backward", "gradient of weight is off by"),
        ("acme-remembering", "forward", "is off by"),
    ],
)
def test_a_wrong_kernel_is_invalid_however_fast(
    acme: Path, executor: str, compute_type: str, what: str
) -> None:
    result = measured(acme, executor, compute_type)
    assert result.status is Status.INVALID
    assert what in result.reasons[0]


def test_a_rate_above_the_peak_of_its_device_is_invalid_with_both_numbers(
    acme: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a device of this table: there is none of processors."""
    slow = named_hardware("t4")
    peaks = slow.hardware.peak_flops.model_copy(update={"fp32": 1.0})
    row = slow._replace(hardware=slow.hardware.model_copy(update={"peak_flops": peaks}))
    usual = measured(acme, "eager", "inference")
    assert usual.status is Status.OK
    evidence = usual.ranks[0].evidence["op"]
    assert evidence["cache_flushed"] is False
    assert str(evidence["summary"]).endswith("caches are not emptied between calls")
    monkeypatch.setattr(engine_impl, "declared_hardware", lambda device: row)
    result = measured(acme, "eager", "inference")
    assert result.status is Status.INVALID
    assert "FLOP/s in float32 is more than t4 can do, 1 FLOP/s" in result.reasons[0]


def test_a_wrong_gradient_does_not_matter_to_inference(acme: Path) -> None:
    assert measured(acme, "acme-wrong-gradient", "inference").status is Status.OK


def test_a_size_beyond_all_memory_ends_as_out_of_memory(acme: Path) -> None:
    result = measured(acme, "acme-sound", "inference", size="huge")
    assert result.status is Status.OOM


def test_a_cell_whose_float64_does_not_fit_is_compared_at_its_tiny_size(acme: Path) -> None:
    result = measured(acme, "acme-sound", "inference", size="wide")
    assert result.status is Status.OK, result.reasons
    evidence: Any = result.ranks[0].evidence["op"]
    assert evidence["check"]["size"] == "tiny"
    assert "output at size tiny within" in evidence["summary"]


@pytest.mark.box
@pytest.mark.release
def test_the_program_runs_and_stores_cells_in_processes_of_their_own(
    site: Path, tmp_path: Path
) -> None:
    """Eager and a wrong kernel: the one has figures, the other is `invalid` and has none."""
    results = ["--results", str(tmp_path / "results")]
    short = ["--compute-type", "backward", "--rounds", "1", "--set", "measure.steps=5", "-q"]
    short += ["--set", "measure.warmup=2", "--format", "json"]
    cell = ["op", "run", "acme_scale", "--executor", "acme-wrong", *short, *results]
    done = start(*cell, PYTHONPATH=str(site))
    assert done.code == 1, done.err
    assert "tokens" not in done.out
    right, wrong = json.loads(done.out)["cells"]
    assert (right["executor"], right["status"], right["is_baseline"]) == ("eager", "ok", True)
    assert right["calls_per_second"]["median"] * right["seconds_per_call"]["median"] == (
        pytest.approx(1)
    )
    assert right["check"]["largest"] <= right["check"]["tolerance"]
    assert (wrong["executor"], wrong["status"]) == ("acme-wrong", "invalid")
    assert wrong["calls_per_second"] is None
    assert "is off by" in wrong["reasons"][0]
    page = call("report", "--markdown", "-", *results).out
    assert "calls/s" in page and "tokens/s" not in page
    assert "fraction_of_roofline" in page


@pytest.mark.box
@pytest.mark.release
@pytest.mark.parametrize(("executor", "codes"), [("acme-sound", {0, 5}), ("acme-wrong", {1})])
def test_the_scenario_of_an_operation_is_gated(
    acme: Path, site: Path, executor: str, codes: set[int]
) -> None:
    """Nothing is trained, which is no obstacle: it passes or is open; a wrong kernel fails."""
    text = call("op", "show", "acme_scale", "--compute-type", "forward", "--executor", executor).out
    Path("cell.yaml").write_text(text, encoding="utf8")
    options = [
        "--tolerance",
        "95%",
        "--rounds",
        "2",
        "--set",
        "measure.steps=5",
        "--format",
        "json",
    ]
    options += ["--set", "measure.warmup=2", "--results", "results"]
    done = start("gate", "cell.yaml", "--stack", executor, *options, PYTHONPATH=str(site))
    assert done.code in codes, done.err
    shown = done.out + done.err
    assert ("is off by" in shown) == (executor == "acme-wrong")
    assert "not shown to be the baseline's" not in shown


@pytest.mark.box
def test_calls_are_no_tokens_in_any_table(tmp_path: Path) -> None:
    """The engine without torch counts calls where the task is an operation."""
    scenario = write_nulls(tmp_path, task="operation", stacks="{baseline: [], other: []}")
    results = ["--results", str(tmp_path / "results")]
    runs = [call("run", str(scenario), "--rounds", "1", *results, folder=tmp_path)]
    assert runs[0].code == 0
    assert "loss not tested: nothing is trained" in runs[0].out
    assert "calls/s" in runs[0].err
    listed = json.loads(call("results", "list", "--format", "json", *results).out)
    assert listed[0]["tokens_per_second"] is None
    assert listed[0]["calls_per_second"] > 0
    first, second = (one["run_id"] for one in listed)
    runs += [
        call("compare", first, second, *results),
        call("report", "--markdown", "-", *results),
        call("history", "nulls", *results),
        call("results", "pivot", "--rows", "stack", *results),
    ]
    for done in runs:
        assert "calls/s" in done.out or "calls per second" in done.out, done
        assert "tokens/s" not in done.out + done.err
    side_by_side = runs[1].out
    assert "samples/s" not in side_by_side and "steps/s" not in side_by_side
    assert "peak MiB of the process" in side_by_side
    assert "tokens per" not in runs[-1].out
    made = json.loads(call("results", "pivot", "--rows", "stack", "--format", "json", *results).out)
    units = {one["name"]: one["unit"] for one in made["values"]}
    assert units["tokens_per_second"] == "calls/s"
    priced = call("results", "cost", "--price", "1", *results).out
    assert "no cost, since calls of an operation were counted" in priced
    assert call("results", "check", str(tmp_path / "results")).code == 0


@pytest.mark.box
def test_operations_on_more_devices_scale_in_calls(tmp_path: Path) -> None:
    scenario = write_nulls(tmp_path, task="operation", stacks="{baseline: []}")
    options = [
        "--set",
        "parallel=none",
        "--oversubscribe",
        "--only",
        "baseline",
        "--devices",
        "1,2",
        "--project",
        "8",
        "--rounds",
        "1",
    ]
    results = ["--results", str(tmp_path / "results")]
    done = call("scaling", str(scenario), *options, *results, folder=tmp_path)
    assert done.code == 0, done.err
    assert "calls/s" in done.out and "tokens" not in done.out


def cell(executor: str, status: Status, **more: Any) -> dict[str, Any]:
    """Facts of an unmeasured cell."""
    facts = {"scenario": "s", "benchmark": "rms_norm", "size": "7b", "compute_type": "forward"}
    facts |= {"dtype": "float32", "device": "cpu", "experiment_id": "", "runs": 0}
    return {**facts, "executor": executor, "status": status, "verdict": "not tested", **more}


def test_a_verdict_says_how_many_rounds_it_needs() -> None:
    cells = (OperationCell(**{**cell("inductor", Status.OK), "runs": 3}),)
    text = render_report(operations_report(OperationReport(baseline="eager", cells=cells)), "csv")
    assert "not tested" in text
    text = render_report(operations_report(OperationReport(baseline="eager", cells=cells)), "wide")
    assert "needs 2" in " ".join(text.split()) and "mean ms" in text


def test_a_table_of_cells_fits_80_columns_and_its_cells_are_whole() -> None:
    span = Interval(median=123456.7, low=98765.4, high=145678.9)
    figures = {
        **dict.fromkeys(("flops_per_second", "bytes_per_second", "peak_bytes"), 1.23e9),
        "fraction_of_roofline": 0.1234,
        "calls_per_second": span,
        "seconds_per_call": Interval(median=8.1e-6, low=6.8e-6, high=1.1e-5),
        "ratio": Interval(median=1.234, low=0.987, high=1.456),
    }
    full = OperationCell(**{**cell("inductor", Status.OK, **figures), "runs": 5, "verdict": "same"})
    report = operations_report(OperationReport(baseline="eager", cells=(full,)))
    assert_whole(report.sections[0].tables[0])


def test_out_of_memory_is_a_cell_and_a_failure_is_an_error() -> None:
    cells = (
        OperationCell(**cell("eager", Status.OOM, reasons=("asked 3 TiB",))),
        OperationCell(**cell("inductor", Status.SKIPPED, reasons=("no compiler",))),
    )
    text = render_report(operations_report(OperationReport(baseline="eager", cells=cells)), "table")
    assert "OOM" in text
    assert "rms_norm forward 7b eager: asked 3 TiB" in text
    for statuses, code in (
        ("ok oom skipped", 0),
        ("ok invalid", 1),
        ("oom failed", 1),
        ("skipped skipped", 3),
    ):
        rows = [
            SimpleNamespace(status=Status(one), failed_rounds=(), quantity=Quantity())
            for one in statuses.split()
        ]
        summaries: Any = [SimpleNamespace(experiments=rows)]
        assert exit_code(summaries, ANSWERS) == code

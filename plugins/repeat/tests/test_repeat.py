"""The scenarios that repeat published benchmarks: their points, what they need, and their twins."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli.program import call

from accel_bench import Status
from accel_bench.analysis.checks.audit import audit
from accel_bench.documents.presets import preset_path
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.planning.resolve import resolve
from accel_bench.plugins.registry import missing_extras
from accel_bench.scenario.find import read_draft
from accel_bench.scenario.models import ScenarioFile
from accel_bench.scenario.sweep import sweep_points
from accel_bench.testing import make_machine, run_scenario

pytestmark = pytest.mark.box

POINTS = {
    "cost-cookbook": (12, 3),
    "lora-70b": (1, 2),
    "full-70b": (1, 2),
    "fms-peft": (12, 7),
    "fms-padding-free": (4, 4),
    "fms-moe": (4, 2),
    "training-guide-text": (720, 2),
    "training-guide-embedding": (720, 2),
    "training-guide-precision": (2, 4),
    "litgpt-compilers": (1, 6),
}
"""Number of sweep points and of stacks of each scenario."""

PRINTED = {
    ("llama-2-7b", 512, 64), ("llama-2-7b", 1024, 32), ("llama-2-7b", 2048, 8),
    ("llama-2-7b", 4096, 4), ("llama-2-70b", 512, 16), ("llama-2-70b", 1024, 8),
    ("llama-2-70b", 2048, 4), ("llama-2-70b", 4096, 2), ("mixtral-8x7b", 512, 64),
    ("mixtral-8x7b", 1024, 32), ("mixtral-8x7b", 2048, 16), ("mixtral-8x7b", 4096, 8),
}  # fmt: skip
"""Model, length and micro-batch of each row of the cost cookbook."""

FEW_STEPS = {"measure.warmup": 1, "measure.steps": 3, "measure.phase_steps": 2}


def read(name: str) -> ScenarioFile:
    """Return a shipped scenario."""
    return resolve(read_draft(preset_path("scenarios", name))).scenario


def planned(name: str, *changes: tuple[str, Any]) -> Plan:
    """Return the plan of a scenario on eight GPUs of 80 GB."""
    here = read_machine()
    of_80_gb = {"memory_bytes": 80 * 2**30}
    gpus = [gpu.model_copy(update=of_80_gb) for gpu in make_machine(*[(9, 0)] * 8).gpus]
    machine = here.model_copy(update={"gpus": gpus, "versions": {**here.versions, "torch": "2.13"}})
    request = PlanRequest(allow_environment=True, force=True, overrides=changes)
    return make_plan(read_draft(preset_path("scenarios", name)), machine, request)


@pytest.mark.parametrize("name", POINTS)
def test_a_benchmark_has_all_of_its_points_and_stacks(name: str) -> None:
    scenario = read(name)
    assert (len([*sweep_points(scenario)]), len(scenario.stacks)) == POINTS[name]
    assert scenario.slow


def test_the_cookbook_has_the_rows_of_its_table() -> None:
    keys = ("model.id", "data.sequence_length", "train.micro_batch_size")
    points = [*sweep_points(read("cost-cookbook"))]
    assert {tuple(point[key] for key in keys) for point in points} == PRINTED


def test_what_can_only_be_invalid_is_left_out_with_its_reason() -> None:
    one = ("train.gradient_accumulation", "data.sequence_length", "train.learning_rate")
    corner = [(f"sweep.{key}", [read("training-guide-embedding").sweep[key][0]]) for key in one]
    plan = planned("training-guide-embedding", *corner)
    reasons = Counter(reason for one in plan.planned for reason in one.skipped)
    (reason,) = reasons
    assert "alone in its micro-batch" in reason
    # One of five micro-batches is of one pair.
    assert reasons[reason] == len(plan.planned) / 5


def test_a_precision_that_a_device_lacks_is_left_out_with_its_reason() -> None:
    assert {one.skipped for one in planned("training-guide-precision").planned} == {()}
    on_cpu = planned("training-guide-precision", ("resources.device", "cpu")).planned
    skipped = {one.experiment.stack.name: one.skipped for one in on_cpu if one.skipped}
    assert [*skipped] == ["mixed-precision-fp16"]
    assert "bf16-autocast" in skipped["mixed-precision-fp16"][0]


@pytest.mark.parametrize("name", ["lora-70b", "full-70b", "fms-moe"])
def test_a_benchmark_without_missing_plugins_is_planned_whole(name: str) -> None:
    assert {one.skipped for one in planned(name).planned} == {()}


def test_a_missing_extra_is_named_for_each_stack_that_needs_it() -> None:
    missing = {*missing_extras(["autogptq", "bitsandbytes", "fused-kernels"])}
    for one in planned("fms-peft", ("sweep.train.micro_batch_size", [4])).planned:
        lacking = {use.use for use in one.experiment.stack.uses} & missing
        assert all(any(name in reason for reason in one.skipped) for name in lacking)
        assert bool(one.skipped) is bool(lacking)


@pytest.mark.parametrize("name", ["cost-cookbook-cpu", "training-guide-cpu"])
def test_a_twin_runs_here(name: str, tmp_path: Path) -> None:
    scenario = read(name)
    assert not scenario.slow
    # Its first point alone, in the place of the sweep.
    (first, *_) = sweep_points(scenario)
    path = tmp_path / f"{name}.yaml"
    data = read_draft(preset_path("scenarios", name)).data
    path.write_text(yaml.safe_dump({k: v for k, v in data.items() if k not in ("sweep", "zip")}))
    settings = {**first, **FEW_STEPS, "measure.rounds": 1}
    (found,) = run_scenario(path, only=[scenario.baseline], settings=settings).values()
    assert found.status is Status.OK, found.reasons
    assert not audit(found)


@pytest.mark.release
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("cost-cookbook-cpu", "model,sequence_length,batch_size"),
        ("litgpt-compilers-cpu", "stack"),
        ("training-guide-cpu", "stack"),
    ],
)
def test_a_whole_twin_prints_its_table(name: str, rows: str, tmp_path: Path) -> None:
    results = ("--results", str(tmp_path / "results"))
    assert call("run", name, *results).code == 0
    values = "tokens_per_hour,mean_step_seconds,dollars_per_million_tokens"
    table = call("results", "pivot", "--rows", rows, "--values", values, "--price", "1", *results)
    assert table.code == 0 and "0 experiments" not in table.out

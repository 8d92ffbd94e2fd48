"""More memory than a machine has is refused before anything starts, unless the user insists."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faults.program import null_scenario, write_scenario
from planning.small_machine import plan_in, small_machine

from accel_bench.errors import ScenarioError
from accel_bench.machine.info import Machine
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.plugins.registry import missing_extras
from accel_bench.scenario.find import read_draft

PlanOf = Callable[..., Plan]


@pytest.fixture(scope="module")
def machine() -> Machine:
    """A machine of two cores and 24 GiB, with one GPU of 80 GiB."""
    return small_machine()


@pytest.fixture
def plan_of(tmp_path: Path, machine: Machine) -> PlanOf:
    """Plan a model under `adamw` on the CPU, with dotted keys changed."""
    return partial(plan_in, tmp_path, machine)


def total(plan: Plan) -> float:
    """Bytes that the only experiment needs."""
    (planned,) = plan.planned
    assert planned.need is not None
    return planned.need.total_bytes


def test_training_mixtral_in_float32_is_refused_with_stack_sum_and_ways_out(
    plan_of: PlanOf,
) -> None:
    with pytest.raises(ScenarioError) as caught:
        plan_of(**{"model.id": "mixtral-8x7b"})
    text = str(caught.value)
    assert text.startswith(
        "not enough memory. baseline: at least 696 GiB of memory (174 GiB weights + 174 GiB "
        "gradients + 348 GiB optimizer state) of 46.7e9 parameters, and the host has 24.0 GiB. "
    )
    assert all(way in text for way in ("model.id", "adapter.use=lora", "--force"))
    assert caught.value.exit_code == 2


def test_force_plans_it_and_keeps_the_need(plan_of: PlanOf) -> None:
    plan = plan_of(PlanRequest(force=True), **{"model.id": "mixtral-8x7b"})
    assert total(plan) == 46702792704 * 16


@pytest.mark.parametrize(
    ("changes", "bytes_each"),
    [
        ({}, 16),
        ({"model.dtype": "bfloat16"}, 8),
        ({"optimizer.use": "sgd"}, 8),
        ({"optimizer.optimizer_in_backward": True}, 12),
        ({"adapter.use": "lora"}, 4),
        ({"adapter.use": "lora", "stacks.baseline": "[bitsandbytes]"}, 0.5),
    ],
)
def test_a_parameter_costs_its_weight_gradient_and_state(
    plan_of: PlanOf, changes: dict[str, Any], bytes_each: float
) -> None:
    if "stacks.baseline" in changes and missing_extras(["bitsandbytes"]):
        pytest.skip("bitsandbytes is not installed")
    plan = plan_of(PlanRequest(force=True), **{"model.id": "llama-2-7b", **changes})
    if plan.planned[0].skipped:
        pytest.skip(plan.nothing)
    assert total(plan) == pytest.approx(6738415616 * bytes_each)


def test_a_gpu_is_measured_by_its_own_memory(plan_of: PlanOf) -> None:
    changes = {"model.id": "llama-2-7b", "resources.device": "cuda"}
    with pytest.raises(ScenarioError, match=r"100 GiB .* and the device has 80\.0 GiB"):
        plan_of(**changes)
    assert total(plan_of(**changes, **{"model.dtype": "bfloat16"})) == 6738415616 * 8


def test_ranks_that_hold_a_copy_each_share_one_host(plan_of: PlanOf) -> None:
    one = total(plan_of(**{"model.id": "gpt2"}))
    assert total(plan_of(**{"model.id": "gpt2", "resources.devices": 2})) == 2 * one


def test_what_is_not_run_is_not_refused(plan_of: PlanOf) -> None:
    rule = '[{when: {model.id: mixtral-8x7b}, because: "too large"}]'
    sweep = {"sweep.model.id": ["gpt2", "mixtral-8x7b"], "exclude": rule}
    assert len(plan_of(**sweep).runnable) == 1


def test_a_model_of_another_plugin_has_no_estimate(tmp_path: Path, machine: Machine) -> None:
    path = write_scenario(tmp_path / "scenario.yaml", null_scenario({"baseline": []}))
    assert make_plan(read_draft(path), machine, PlanRequest()).planned[0].need is None

"""More processes than a machine has cores or GPUs are refused, unless the user insists."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from planning.small_machine import plan_in, small_machine

from accel_bench.errors import ScenarioError
from accel_bench.machine.info import Machine
from accel_bench.planning.plan import Plan, PlanRequest

PlanOf = Callable[..., Plan]


@pytest.fixture(scope="module")
def machine() -> Machine:
    """A machine of two cores and 24 GiB, with one GPU of 80 GiB."""
    return small_machine()


@pytest.fixture
def plan_of(tmp_path: Path, machine: Machine) -> PlanOf:
    """Plan a model under `adamw` on the CPU, with dotted keys changed."""
    return partial(plan_in, tmp_path, machine)


def test_more_processes_than_cores_are_refused_with_the_way_out(plan_of: PlanOf) -> None:
    refused = (
        r"^resources\.devices: 1,000 processes would share 2 cores; set it to 2 or less, or pass "
        r"--oversubscribe$"
    )
    with pytest.raises(ScenarioError, match=refused):
        plan_of(**{"resources.devices": 1000})
    assert plan_of(**{"resources.devices": 2}).runs
    assert plan_of(PlanRequest(oversubscribe=True), **{"resources.devices": 3}).runs


def test_more_ranks_than_gpus_are_never_started(plan_of: PlanOf) -> None:
    changes = {"resources.devices": 2, "resources.device": "cuda"}
    plan = plan_of(PlanRequest(oversubscribe=True), **changes)
    assert plan.nothing == "nothing can run here: 2 CUDA devices are asked for, 1 are here"

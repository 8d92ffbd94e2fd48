"""More processes than a machine has cores or GPUs are refused, unless the user insists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accel_bench.documents.load import parse_value
from accel_bench.errors import ScenarioError
from accel_bench.machine.info import GPU, Machine, read_machine
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.scenario.find import read_draft

PlanOf = Callable[..., Plan]


@pytest.fixture(scope="module")
def machine() -> Machine:
    """A machine of two cores and 24 GiB, with one GPU of 80 GiB."""
    gpu = GPU(index=0, name="a GPU", uuid="a", memory_bytes=80 * 2**30, compute_capability=(9, 0))
    versions = {**read_machine().versions, "torch": "2.13.0"}
    memory = {"cores": 2, "memory_bytes": 24 * 2**30}
    return read_machine().model_copy(update={**memory, "versions": versions, "gpus": (gpu,)})


@pytest.fixture
def plan_of(tmp_path: Path, machine: Machine) -> PlanOf:
    """Plan a model under `adamw` on the CPU, with dotted keys changed."""

    def make(request: PlanRequest | None = None, **changes: Any) -> Plan:
        path = tmp_path / "scenario.yaml"
        path.write_text("name: sizes\nresources: {device: cpu}\nstacks: {baseline: []}\n")
        draft = read_draft(path)
        for key, value in changes.items():
            draft.set(key, parse_value(value, key) if isinstance(value, str) else value, key)
        return make_plan(draft, machine, request or PlanRequest())

    return make


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

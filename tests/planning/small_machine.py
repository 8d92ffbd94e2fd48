"""A machine of two cores with one GPU, and plans of a small scenario on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accel_bench.documents.load import parse_value
from accel_bench.machine.info import GPU, Machine, read_machine
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.scenario.find import read_draft


def small_machine() -> Machine:
    """A machine of two cores and 24 GiB, with one GPU of 80 GiB."""
    gpu = GPU(index=0, name="a GPU", uuid="a", memory_bytes=80 * 2**30, compute_capability=(9, 0))
    versions = {**read_machine().versions, "torch": "2.13.0"}
    memory = {"cores": 2, "memory_bytes": 24 * 2**30}
    return read_machine().model_copy(update={**memory, "versions": versions, "gpus": (gpu,)})


def plan_in(
    folder: Path, machine: Machine, request: PlanRequest | None = None, **changes: Any
) -> Plan:
    """Plan a model under `adamw` on the CPU, with dotted keys changed."""
    path = folder / "scenario.yaml"
    path.write_text("name: sizes\nresources: {device: cpu}\nstacks: {baseline: []}\n")
    draft = read_draft(path)
    for key, value in changes.items():
        draft.set(key, parse_value(value, key) if isinstance(value, str) else value, key)
    return make_plan(draft, machine, request or PlanRequest())

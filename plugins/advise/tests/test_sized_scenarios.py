"""Scenarios that state a device's memory fit into it by estimate."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from accel_bench_advise.estimates.memory import MemoryEstimator
from accel_bench_advise.estimates.schema import MemoryEstimate
from accel_bench_advise.estimates.simulator import Simulator
from accel_bench_advise.estimates.target import machine_with, target_of

from accel_bench.catalog.hardware import named_hardware
from accel_bench.documents.presets import find_presets
from accel_bench.errors import ScenarioError
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import Planned, PlanRequest, make_plan
from accel_bench.scenario.find import read_draft

KEY = "resources.device_memory_gib"

pytestmark = pytest.mark.box  # they name stacks of other folders


def states_memory(path: Path) -> bool:
    """Return whether a training scenario states the memory of its device."""
    try:
        draft = read_draft(path)
    except ScenarioError:  # without the folder of a stack
        return False
    return bool(draft.get(KEY)) and draft.get("mode") != "inference"


STATED = sorted(name for name, path in find_presets("scenarios").items() if states_memory(path))
"""Training scenarios that state the memory of their device."""

SIZED = [name for name in STATED if re.search(r"-\d+gb$", name)]
"""Scenarios made to fill the device."""

SMALLEST = "full-1b-24gb"
"""Scenarios that are simulated in seconds; others take a minute each."""


@pytest.fixture(scope="module")
def simulator() -> Iterator[Simulator]:
    """One process that simulates all steps."""
    with closing(Simulator()) as one:
        yield one


def baseline_of(name: str) -> Planned:
    """Plan a scenario for a machine with a sufficiently large device."""
    machine = machine_with(read_machine(), named_hardware("h100-80gb"), 1)
    draft = read_draft(find_presets("scenarios")[name])
    plan = make_plan(draft, machine, PlanRequest(only=("baseline",), force=True))
    (planned,) = plan.planned
    assert planned.skipped == ()
    return planned


def memory_of(planned: Planned, simulator: Simulator) -> MemoryEstimate:
    """Return the estimated memory of the device."""
    chosen = named_hardware("h100-80gb")
    target = target_of(read_machine(), chosen)
    return MemoryEstimator(simulator, target).memory(planned)


@pytest.mark.parametrize(
    "name",
    [n if n == SMALLEST else pytest.param(n, marks=pytest.mark.release) for n in STATED],
)
def test_its_step_fits_in_what_a_device_of_that_size_reports(
    name: str, simulator: Simulator
) -> None:
    planned = baseline_of(name)
    resources = planned.experiment.scenario.resources
    assert resources.device_memory_bytes is not None
    needed = memory_of(planned, simulator).needed_bytes
    assert needed.high <= resources.device_memory_bytes
    # What needs half as much belongs to a smaller device.
    assert name not in SIZED or needed.high > resources.device_memory_bytes / 2


@pytest.mark.parametrize("name", SIZED)
def test_its_name_and_its_description_say_the_size(name: str) -> None:
    draft = read_draft(find_presets("scenarios")[name])
    size = draft.get(KEY)
    assert re.search(rf"-{size}gb$", name)
    assert f"one GPU of {size} GB" in " ".join(str(draft.get("description")).split())


def test_there_is_one_of_every_size_people_rent() -> None:
    assert {read_draft(find_presets("scenarios")[name]).get(KEY) for name in SIZED} >= {24, 48, 80}

"""Growth of memory: a leak is found, and neither noise nor a pool that fills up is called one."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from accel_bench_report.learning.convergence import converge
from accel_bench_report.learning.growth import LEAST_BYTES, MINIMUM_STEPS, slope_of
from accel_bench_report.learning.schema import MemoryGrowth
from learning_factory import learned

from accel_bench.analysis.aggregate import collect_experiments

MIB = 2**20
STEPS = 120

SHAPES: dict[str, Callable[[int], float]] = {
    "nothing": lambda step: 200 * MIB,
    "a pool that fills up": lambda step: 200 * MIB + min(step, 40) * MIB,
    "one jump": lambda step: (200 if step < 80 else 230) * MIB,
    "a sawtooth": lambda step: 200 * MIB + step % 7 * 5 * MIB,
    "what shrinks": lambda step: 200 * MIB - step * MIB // 10,
}


def growth(shape: Callable[[int], float], steps: int = STEPS, noise: float = 0.0) -> MemoryGrowth:
    generator = Random(0)
    memory = [round(shape(step) + generator.uniform(0, noise)) for step in range(steps)]
    experiments = collect_experiments([learned([5.0, 4.0], memory=memory)])
    (row,) = converge(experiments, {}).experiments
    return row.memory_growth


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("noise", [0.0, 4 * MIB])
def test_what_is_no_leak_is_not_called_one(name: str, noise: float) -> None:
    assert growth(SHAPES[name], noise=noise).verdict == "does not hold"


@pytest.mark.parametrize("leak", [MIB // 4, 3 * MIB])
@pytest.mark.parametrize("noise", [0.0, 4 * MIB])
def test_a_leak_is_found_with_its_size(leak: int, noise: float) -> None:
    found = growth(lambda step: 200 * MIB + leak * step, noise=noise)
    assert (found.verdict, found.growing, found.runs, found.kind) == ("holds", 1, 1, "rss")
    assert found.bytes_per_step is not None
    assert found.bytes_per_step.median == pytest.approx(leak, rel=0.1)
    assert found.bytes_per_step.low is not None
    assert found.bytes_per_step.low > 0
    assert found.steps == 90


def test_a_leak_that_comes_to_less_than_a_mebibyte_is_too_small_to_be_called_one() -> None:
    leak = LEAST_BYTES / STEPS
    assert growth(lambda step: 200 * MIB + leak * step).verdict == "does not hold"


def test_few_steps_are_not_tested() -> None:
    found = growth(SHAPES["nothing"], steps=MINIMUM_STEPS - 1)
    assert found.verdict == "not tested"
    assert "evaluate.steps" in found.reason


def test_tensors_on_a_gpu_are_read_in_the_place_of_the_process() -> None:
    run = learned([5.0, 4.0], memory=[200 * MIB] * 60)
    rank = run.ranks[0]
    assert rank.learning is not None
    readings = tuple(
        one.model_copy(update={"device_allocated_bytes": 10 * MIB + number * MIB})
        for number, one in enumerate(rank.learning.memory)
    )
    learning = rank.learning.model_copy(update={"memory": readings})
    slope = slope_of(rank.model_copy(update={"learning": learning}))
    assert slope is not None
    assert (slope.kind, slope.grows) == ("allocated", True)
    assert slope.interval.median == pytest.approx(MIB, rel=0.01)

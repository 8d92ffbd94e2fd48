"""Memory that a device needs, and the search for the largest value that fits."""

from __future__ import annotations

import pytest
from accel_bench_advise.estimates.memory import GIBI, largest_that_fits, memory_estimate
from accel_bench_advise.estimates.schema import Bounds, Footprint, Part
from hypothesis import given
from hypothesis import strategies as st

LINES = st.tuples(st.integers(0, 10**6), st.integers(1, 10**4), st.floats(0, 1))
"""Coefficients of memory in bytes: fixed, per value, and per squared value."""


@given(
    line=LINES,
    floor=st.integers(0, 2 * 10**6),
    capacity=st.integers(1, 4 * 10**6),
    first=st.integers(1, 500),
    step=st.sampled_from([1, 8, 64]),
)
def test_the_largest_that_fits_is_found_by_a_few_trials(
    line: tuple[int, int, float], floor: int, capacity: int, first: int, step: int
) -> None:
    tried = []

    def need(value: int) -> float:
        tried.append(value)
        return max(floor, line[0] + line[1] * value + line[2] * value**2)

    found = largest_that_fits(need, capacity, first, step, limit=4096)
    assert all(value % step == 0 and 0 < value <= 4096 for value in tried)
    assert len(tried) <= 24
    assert not found.value or need(found.value) <= capacity
    assert found.value == 4096 or need(found.value + step) > capacity
    assert found.bounded_by == ("search" if found.value == 4096 else "memory")


def test_memory_on_a_straight_line_takes_three_trials() -> None:
    tried = []

    def need(value: int) -> float:
        tried.append(value)
        return 14e9 + 1.3e9 * value

    assert largest_that_fits(need, 80e9, 1, limit=65_536).value == 50
    assert tried == [1, 2, 50], tried


def step_of(parts: dict[Part, int]) -> Footprint:
    """A simulated step with the given peak bytes."""
    return Footprint(parts=parts, phase="backward", operations=(), processed=1)


def test_parallelism_divides_the_model_and_not_the_activations() -> None:
    footprint = step_of(
        {"weights": 40, "quantized weights": 20, "gradients": 40, "activations": 30}
    )
    asked = []

    def copies(part: str) -> float:
        asked.append(part)
        return {"weights": 0.5, "gradients": 0.25}[part]

    assert memory_estimate(footprint, copies, "cuda", None).parts == {
        "weights": 20,
        "quantized weights": 10,
        "gradients": 10,
        "activations": 30,
    }
    assert set(asked) == {"weights", "gradients"}


@pytest.mark.parametrize(
    ("device_gib", "fit"),
    [(20, "holds"), (11, "inconclusive"), (10, "does not hold"), (None, None)],
)
def test_what_lies_within_the_span_may_fit(device_gib: int | None, fit: str | None) -> None:
    size = None if device_gib is None else device_gib * GIBI
    found = memory_estimate(step_of({"weights": 10 * GIBI}), lambda part: 1, "cuda", size)
    assert found.needed_bytes.low > found.tensor_bytes == 10 * GIBI
    assert found.fit == fit


def test_each_rank_of_a_shared_memory_is_a_process_of_its_own() -> None:
    needs = [
        memory_estimate(step_of({}), lambda part: 1, "cpu", None, ranks).needed_bytes
        for ranks in (1, 4)
    ]
    assert needs[1] == needs[0].times(4)


def test_a_span_is_inverted_in_order() -> None:
    assert Bounds(low=2, high=4).inverted(8) == Bounds(low=2, high=4)

"""Readings become energy, power and peaks, interpolated linearly."""

from __future__ import annotations

import pytest
from accel_bench_metrics.nvml_metrics import energy_joules, mean_watts
from accel_bench_metrics.nvml_sampler import Readings
from hypothesis import given
from hypothesis import strategies as st

TIMES = [0.0, 1.0, 2.0, 3.0]
COUNTER = [5000.0, 6000.0, 8000.0, 8000.0]


def test_energy_between_readings_is_interpolated() -> None:
    # Half of the first second's 1 J, all of the second one's 2 J, nothing of the third one's.
    assert energy_joules(TIMES, COUNTER, 0.5, 2.5) == pytest.approx(2.5)
    assert energy_joules(TIMES, COUNTER, 1.0, 2.0) == pytest.approx(2.0)
    assert energy_joules(TIMES, COUNTER, 0.0, 3.0) == pytest.approx(3.0)


@pytest.mark.parametrize(("started", "ended"), [(-0.1, 2.0), (1.0, 3.1)])
def test_energy_outside_the_readings_is_not_known(started: float, ended: float) -> None:
    assert energy_joules(TIMES, COUNTER, started, ended) is None
    assert mean_watts(TIMES, COUNTER, started, ended) is None


@pytest.mark.parametrize("count", [0, 1])
def test_one_reading_is_not_enough(count: int) -> None:
    assert energy_joules(TIMES[:count], COUNTER[:count], 0.0, 0.0) is None
    assert mean_watts(TIMES[:count], COUNTER[:count], 0.0, 0.0) is None


def test_a_counter_that_went_back_gives_no_energy() -> None:
    assert energy_joules(TIMES, [5000.0, 6000.0, 10.0, 2000.0], 0.5, 2.9) is None
    assert energy_joules(TIMES, [5000.0, 6000.0, 10.0, 2000.0], 0.1, 0.9) == pytest.approx(0.8)


def test_mean_power_is_weighted_by_time() -> None:
    assert mean_watts([0.0, 1.0, 4.0], [100.0, 100.0, 400.0], 0.0, 4.0) == pytest.approx(212.5)
    assert mean_watts([0.0, 4.0], [0.0, 400.0], 1.0, 3.0) == pytest.approx(200.0)


@given(
    st.lists(st.floats(0.01, 1.0), min_size=2, max_size=20),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
    st.floats(1.0, 1000.0),
)
def test_at_constant_power_energy_is_power_times_time(
    gaps: list[float], first: float, second: float, watts: float
) -> None:
    times = [0.0]
    for gap in gaps:
        times.append(times[-1] + gap)
    started, ended = sorted((first * times[-1], second * times[-1]))
    energy = energy_joules(times, [1000 * watts * at for at in times], started, ended)
    assert energy == pytest.approx(watts * (ended - started), abs=1e-6)


def test_only_changes_are_kept_and_the_value_before_a_span_counts_in_it() -> None:
    changes = Readings("Q")
    for at, value in ((0.0, 5), (1.0, 5), (2.0, 9), (3.0, 9), (4.0, 7)):
        changes.add_change(value, at)
    assert list(changes.values) == [5, 9, 7]
    assert list(changes.within(0.5, 1.5)) == [5]
    assert list(changes.within(2.5, 3.5)) == [9]
    assert list(changes.within(1.0, 5.0)) == [5, 9, 7]
    assert list(changes.within(-2.0, -1.0)) == []

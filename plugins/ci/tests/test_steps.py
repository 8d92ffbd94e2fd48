"""Steps in series: those that are there are found, and drift, memory and outliers are none."""

from __future__ import annotations

import math
import random
from statistics import median

import pytest
from accel_bench_ci.steps import autocorrelation, find_steps


def series(count, seed, *, memory=0.0, outliers=0.0, slope=0.0, swing=0.0, step=0.0, at=0):
    """Logarithms of a figure with noise of 1 %; outliers are a fifth or so."""
    draw, state, found = random.Random(seed), 0.0, []
    for place in range(count):
        state = memory * state + draw.gauss(0, 0.01 * math.sqrt(1 - memory**2))
        far = draw.expovariate(5) if draw.random() < outliers else 0.0
        wave = swing * math.sin(2 * math.pi * place / count)
        found.append(state + far + wave + slope * place + step * (place >= at))
    return found


@pytest.mark.parametrize("sign", [1, -1])
def test_a_step_is_found_at_its_place_with_its_size(sign):
    (step,) = find_steps(series(60, 1, outliers=0.05, step=sign * 0.05, at=35))
    assert abs(step.place - 35) <= 1
    assert step.size == pytest.approx(sign * 0.05, abs=0.01)
    assert step.p_value <= 0.001


def test_two_steps_are_found_in_order_and_the_newest_after_few_values():
    values = [
        value + 0.08 * (place >= 82) for place, value in enumerate(series(90, 3, step=0.06, at=40))
    ]
    assert [step.place for step in find_steps(values)] == [40, 82]


UNCHANGED = {
    "noise": {},
    "memory": {"memory": 0.7},
    "outliers": {"outliers": 0.1},
    "drift": {"slope": 0.002, "outliers": 0.05},
    "swing": {"swing": 0.05, "outliers": 0.05},
}


@pytest.mark.parametrize("kind", list(UNCHANGED))
def test_what_is_no_step_is_called_none(kind):
    wrong = [seed for seed in range(25) if find_steps(series(80, seed, **UNCHANGED[kind]))]
    assert wrong == []


def test_the_same_series_has_the_same_steps_whatever_its_level():
    values = series(50, 5, memory=0.3, step=0.06, at=30)
    assert find_steps(values) == find_steps(values)
    moved = find_steps([value + 7 for value in values])
    assert [step.place for step in moved] == [step.place for step in find_steps(values)]


def test_series_that_are_short_or_without_noise_are_no_trouble():
    assert find_steps([]) == []
    assert find_steps([0.0] * 6 + [1.0] * 7) == []
    assert find_steps([0.0] * 40) == []
    (step,) = find_steps([0.0] * 20 + [0.1] * 20)
    assert (step.place, step.before, step.after) == (20, 0.0, 0.1)


def test_a_step_below_what_is_worth_one_is_none():
    assert find_steps([0.0] * 20 + [0.01] * 20) == []
    assert len(find_steps([0.0] * 20 + [0.03] * 20)) == 1


def test_autocorrelation_is_not_moved_by_a_step():
    found = [autocorrelation(series(400, seed, memory=0.6)) for seed in range(20)]
    assert median(found) == pytest.approx(0.6, abs=0.1)
    stepped = [autocorrelation(series(400, s, memory=0.6, step=0.5, at=200)) for s in range(20)]
    assert stepped == pytest.approx(found, abs=0.05)


def test_of_a_long_series_the_newest_values_are_looked_at():
    values = [0.3] * 100 + [0.0] * 480 + [0.1] * 20
    assert [step.place for step in find_steps(values)] == [580]

"""Points of a curve, and what it took to reach a loss."""

from __future__ import annotations

from itertools import pairwise

import pytest
from accel_bench_report.learning.curve_points import (
    Amounts,
    amounts_to,
    learning_curve,
    reached_after,
)
from analysis_factory import make_rank, make_result
from hypothesis import given
from hypothesis import strategies as st

from accel_bench.analysis.learning.curves import Reached, training_curve, validation_curve

LOSSES = st.floats(0.01, 100)


@st.composite
def curves(draw: st.DrawFn, falling: bool = False) -> list[Reached]:
    losses = draw(st.lists(LOSSES, min_size=2, max_size=12))
    steps = draw(st.lists(st.integers(1, 50), min_size=len(losses), max_size=len(losses)))
    pace = draw(st.floats(0.001, 10))
    if falling:
        losses.sort(reverse=True)
    found, done = [], 0
    for more, loss in zip(steps, losses, strict=True):
        done += more
        found.append(Reached(done, 64 * done, pace * done, loss))
    return found


def test_without_evaluations_the_curve_is_the_smoothed_training_loss() -> None:
    run = make_result(ranks=(make_rank(step_seconds=(0.1,) * 5, losses=[9, 3, 3, 3, 3, 3]),))
    assert validation_curve(run) == []
    assert [one.loss for one in learning_curve(run)] == pytest.approx([5, 4.5, 4.2, 3, 3, 3])
    assert [one.loss for one in training_curve(run)] == [9, 3, 3, 3, 3, 3]


def test_a_run_without_a_window_has_no_curve() -> None:
    rank = make_rank().model_copy(update={"window": None})
    assert learning_curve(make_result(ranks=(rank,))) == []


def test_a_loss_is_reached_between_two_points() -> None:
    curve = [Reached(0, 0, 0.0, 4.0), Reached(10, 100, 5.0, 2.0), Reached(20, 200, 10.0, 1.0)]
    assert amounts_to(curve, 3.0) == Amounts(5, 50, 2.5)
    assert amounts_to(curve, 1.5) == Amounts(15, 150, 7.5)
    assert amounts_to(curve, 4.5) == Amounts(0, 0, 0.0)
    assert amounts_to(curve, 0.5) is None


def test_after_a_loss_that_is_not_finite_it_is_reached_at_the_next_point() -> None:
    curve = [Reached(0, 0, 0.0, 4.0), Reached(10, 100, 5.0, None), Reached(20, 200, 10.0, 1.0)]
    assert amounts_to(curve, 3.0) == Amounts(20, 200, 10.0)


@given(curve=curves(), target=LOSSES)
def test_what_it_took_lies_on_the_curve_where_the_loss_is_first_that_low(
    curve: list[Reached], target: float
) -> None:
    found = amounts_to(curve, target)
    if found is None:
        assert all(one.loss is not None and one.loss > target for one in curve)
        return
    assert curve[0].steps <= found.steps <= curve[-1].steps
    assert found.tokens == pytest.approx(64 * found.steps)
    passed = [one for one in curve if one.steps < found.steps * (1 - 1e-9)]
    assert all(one.loss is not None and one.loss > target for one in passed)
    assert any(
        one.loss is not None and one.loss <= target
        for one in curve
        if one.steps >= found.steps * (1 - 1e-9)
    )


@given(curve=curves(), targets=st.tuples(LOSSES, LOSSES))
def test_a_lower_loss_never_takes_less(curve: list[Reached], targets: tuple[float, float]) -> None:
    low, high = (amounts_to(curve, target) for target in sorted(targets))
    if low is not None:
        assert high is not None
        assert high.seconds <= low.seconds * (1 + 1e-9)


@given(curve=curves(), target=LOSSES, factor=st.floats(0.1, 10))
def test_twice_as_slow_takes_twice_as_long(
    curve: list[Reached], target: float, factor: float
) -> None:
    slower = [one._replace(seconds=factor * one.seconds) for one in curve]
    found, later = amounts_to(curve, target), amounts_to(slower, target)
    assert (found is None) == (later is None)
    if found and later:
        assert later.seconds == pytest.approx(factor * found.seconds)
        assert later.steps == found.steps


@given(curve=curves(falling=True))
def test_each_point_of_a_falling_curve_is_reached_where_it_stands(curve: list[Reached]) -> None:
    for before, one in pairwise(curve):
        assert one.loss is not None
        found = amounts_to(curve, one.loss)
        assert found is not None
        if before.loss != one.loss:
            assert found.steps == pytest.approx(one.steps)


def test_between_two_points_a_curve_is_interpolated_and_outside_of_them_it_has_none() -> None:
    curve = [Reached(5, 50, 1.0, 4.0), Reached(10, 100, 6.0, 2.0)]
    assert reached_after(curve, 5) == curve[0]
    assert reached_after(curve, 9) == Reached(9, 90, 5.0, 2.4)
    assert reached_after(curve, 10) == curve[1]
    assert [reached_after(curve, steps) for steps in (4, 11)] == [None, None]


def test_next_to_a_loss_that_is_not_finite_there_is_none() -> None:
    curve = [Reached(0, 0, 0.0, None), Reached(2, 20, 1.0, 2.0)]
    assert reached_after(curve, 1) == Reached(1, 10, 0.5, None)

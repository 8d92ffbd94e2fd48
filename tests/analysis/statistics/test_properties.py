"""What holds of intervals, adjusted p-values and verdicts whatever the values are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_bench.analysis.statistics.estimators import (
    Interval,
    geometric_interval,
    holm,
    one_sided_p,
    quantile,
)

few = settings(max_examples=50, deadline=None)

SPEEDS = st.lists(st.floats(1e-3, 1e6), min_size=2, max_size=12)
CLOSE = {"rel": 1e-6, "abs": 1e-12}


def ends(interval: Interval | None) -> tuple[float, float, float]:
    assert interval is not None
    assert interval.low is not None
    assert interval.high is not None
    return interval.low, interval.median, interval.high


@few
@given(SPEEDS, st.randoms(use_true_random=False))
def test_an_interval_holds_its_estimate_in_any_order_of_the_values(speeds, shuffling) -> None:
    low, middle, high = ends(geometric_interval(speeds))
    assert min(speeds) * (1 - 1e-9) <= middle <= max(speeds) * (1 + 1e-9)
    assert low <= middle <= high
    shuffled = list(speeds)
    shuffling.shuffle(shuffled)
    assert ends(geometric_interval(shuffled)) == pytest.approx((low, middle, high), **CLOSE)


@few
@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=12), st.floats(1e-3, 1e3))
def test_units_change_an_interval_by_their_factor_and_turned_ratios_turn_it(ratios, unit) -> None:
    low, middle, high = ends(geometric_interval(ratios))
    scaled = ends(geometric_interval([unit * ratio for ratio in ratios]))
    assert scaled == pytest.approx((unit * low, unit * middle, unit * high), **CLOSE)
    turned = ends(geometric_interval([1 / ratio for ratio in ratios]))
    assert turned == pytest.approx((1 / high, 1 / middle, 1 / low), **CLOSE)


@few
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12))
def test_adjusted_p_values_are_no_smaller_keep_their_order_and_stay_within_one(values) -> None:
    adjusted = holm(values)
    assert all(own <= one <= 1.0 for own, one in zip(values, adjusted, strict=True))
    assert [one for _, one in sorted(zip(values, adjusted, strict=True))] == sorted(adjusted)
    assert min(adjusted) == pytest.approx(min(1.0, min(values) * len(values)))


@few
@given(st.lists(st.floats(-1.0, 1.0), min_size=3, max_size=12))
def test_a_p_value_is_that_of_the_side_on_which_the_mean_is(logarithms) -> None:
    here, there = one_sided_p(logarithms), one_sided_p([-value for value in logarithms])
    assert here == pytest.approx(there)
    assert 0.0 <= here <= 0.5


@few
@given(SPEEDS, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_quantiles_lie_within_the_values_and_rise(values, one, other) -> None:
    low, high = sorted((one, other))
    tolerance = 1e-9 * max(values)
    assert min(values) - tolerance <= quantile(values, low) <= quantile(values, high) + tolerance
    assert quantile(values, high) <= max(values) + tolerance

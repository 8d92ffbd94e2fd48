"""Statistics against numbers worked out by hand or printed in tables."""

from __future__ import annotations

import math

import pytest

from accel_bench.analysis.statistics.estimators import (
    geometric_interval,
    holm,
    one_sided_p,
    quantile,
    t_quantile,
    t_tail,
)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1.0), (0.5, 2.5), (0.95, 3.85), (1.0, 4.0), (0.25, 1.75)]
)
def test_quantiles_are_linear_between_order_statistics(share, expected):
    assert quantile([4.0, 1.0, 3.0, 2.0], share) == pytest.approx(expected)


def test_a_single_value_is_all_its_quantiles():
    assert quantile([7.0], 0.95) == 7.0


@pytest.mark.parametrize(
    ("degrees", "probability", "expected"),
    [(4, 0.975, 2.776), (4, 0.995, 4.604), (9, 0.975, 2.262), (1, 0.975, 12.706)],
)
def test_t_quantiles_are_those_of_the_printed_table(degrees, probability, expected):
    assert t_quantile(degrees, probability) == pytest.approx(expected, abs=5e-4)
    assert t_tail(degrees, t_quantile(degrees, probability)) == pytest.approx(1 - probability)


def test_an_interval_is_centred_on_the_geometric_mean():
    interval = geometric_interval([1.0, math.e**2])
    half = 12.7062 * math.sqrt(2) / math.sqrt(2)
    assert interval.median == pytest.approx(math.e)
    assert interval.low == pytest.approx(math.exp(1 - half), rel=1e-4)
    assert interval.high == pytest.approx(math.exp(1 + half), rel=1e-4)


def test_one_value_has_no_interval():
    interval = geometric_interval([100.0])
    assert interval.median == pytest.approx(100.0)
    assert (interval.low, interval.high) == (None, None)


def test_no_value_has_no_estimate():
    assert geometric_interval([]) is None


def test_holm_multiplies_the_smallest_most_and_never_reverses_the_order():
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_values_without_spread_are_certain_or_nothing_at_all():
    assert one_sided_p([0.25, 0.25]) == 0.0
    assert one_sided_p([0.0, 0.0]) == 0.5


def test_the_one_sided_chance_is_the_tail_beyond_the_t_statistic():
    values = [1.0, 2.0, 3.0]
    assert one_sided_p(values) == pytest.approx(t_tail(2, 2 * math.sqrt(3)))
    assert one_sided_p([-value for value in values]) == pytest.approx(one_sided_p(values))


def test_quantiles_and_tails_are_those_of_scipy() -> None:
    from scipy.special import stdtr, stdtrit

    for degrees in (1, 2, 3.7, 4, 9, 20, 59, 60, 61.5, 500, 10_000):
        for probability in (0.5, 0.6, 0.9, 0.975, 0.9875, 0.999, 1 - 1e-6, 0.05, 1e-4):
            known = float(stdtrit(degrees, probability))
            assert t_quantile(degrees, probability) == pytest.approx(known, rel=1e-10, abs=1e-15)
        for statistic in (0.0, 0.01, 0.7, 1.5, 3.0, 12.7, 1e3, -0.3, -2.0):
            known = float(stdtr(degrees, -statistic))
            assert t_tail(degrees, statistic) == pytest.approx(known, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("degrees", [999_999, 1_000_001, 1e7, 1e9, 1e20, math.inf])
def test_many_degrees_of_freedom_have_no_edge(degrees: float) -> None:
    from scipy.special import stdtr, stdtrit

    for probability in (0.5, 0.6, 0.975, 1 - 1e-6, 0.05, 1e-4):
        known = float(stdtrit(min(degrees, 1e15), probability))
        assert t_quantile(degrees, probability) == pytest.approx(known, rel=1e-9, abs=1e-15)
    for statistic in (0.0, 0.7, 3.0, 12.7, -2.0):
        known = float(stdtr(min(degrees, 1e15), -statistic))
        assert t_tail(degrees, statistic) == pytest.approx(known, rel=1e-8, abs=1e-300)


@pytest.mark.parametrize("degrees", [1, 3, 1e9, math.inf])
def test_nothing_lies_beyond_a_statistic_without_a_square(degrees: float) -> None:
    from scipy.special import stdtr

    for statistic in (1e200, math.inf):
        known = float(stdtr(degrees, -statistic))
        assert t_tail(degrees, statistic) == pytest.approx(known, abs=1e-150)
        assert t_tail(degrees, -statistic) == 1.0


@pytest.mark.parametrize("degrees", [0, -1, math.nan])
def test_no_degree_of_freedom_is_refused_in_words(degrees: float) -> None:
    with pytest.raises(ValueError, match="more than 0 degrees of freedom"):
        t_quantile(degrees, 0.975)
    with pytest.raises(ValueError, match="more than 0 degrees of freedom"):
        t_tail(degrees, 2.0)

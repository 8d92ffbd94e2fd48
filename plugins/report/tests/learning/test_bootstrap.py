"""Bootstrap intervals: where they lie, how often they hold, and what few values give."""

from __future__ import annotations

import math
from random import Random
from statistics import fmean, median

import pytest
from accel_bench_report.learning.bootstrap import bootstrap_ends, expanded_tail
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_bench.analysis.statistics.estimators import t_quantile

VALUES = st.lists(st.floats(-100, 100), min_size=2, max_size=8)


@settings(max_examples=10, deadline=None)
@given(values=VALUES)
def test_the_interval_of_a_median_holds_it_and_lies_within_the_values(values: list[float]) -> None:
    ends = bootstrap_ends([[value] for value in values], median)
    assert ends is not None
    assert min(values) <= ends[0] <= median(values) <= ends[1] <= max(values)


def test_one_value_has_no_interval_and_rounds_of_one_seed_have_one() -> None:
    assert bootstrap_ends([[1.0]], median) is None
    assert bootstrap_ends([[1.0, 2.0, 3.0]], median) == (1.0, 3.0)


def test_seeds_are_drawn_whole_so_that_their_rounds_are_no_further_evidence() -> None:
    """Five rounds of each of four seeds say no more of other seeds than one round of each."""
    seeds = [1.0, 2.0, 3.0, 4.0]
    once = bootstrap_ends([[seed] for seed in seeds], fmean)
    five = bootstrap_ends([[seed] * 5 for seed in seeds], fmean)
    assert once == five


def test_an_end_can_be_infinite() -> None:
    ends = bootstrap_ends([[1.0], [2.0], [math.inf]], median)
    assert ends == (1.0, math.inf)


def test_tails_are_as_far_out_as_student_s_t_for_few_values() -> None:
    assert expanded_tail(1000) == pytest.approx(0.025, rel=0.02)
    assert expanded_tail(3) < 1e-6
    assert t_quantile(2, 0.975) > 4


def test_intervals_of_normal_values_hold_the_mean_about_as_often_as_they_say() -> None:
    generator, trials = Random(5), 120
    held = 0
    for _ in range(trials):
        values = [[generator.gauss(3.0, 1.0)] for _ in range(5)]
        low, high = bootstrap_ends(values, fmean) or (math.inf, -math.inf)
        held += low <= 3.0 <= high
    # A plain percentile interval of five values holds it in 83 % of cases.
    assert held / trials >= 0.9

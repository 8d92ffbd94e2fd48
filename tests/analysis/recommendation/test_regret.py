"""Recommendations against an exhaustive search over the true speeds of generated tables."""

from __future__ import annotations

import math
from statistics import fmean, quantiles

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.recommend import make_table, recommended, regret, regret_of


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.integers(0, 10**6))
def test_without_noise_the_regret_is_at_most_two_percent_on_every_table(seed: int) -> None:
    table = make_table(seed, noise=1e-6)
    assert regret(table, recommended(table, seed)) <= 0.02


@pytest.mark.parametrize("noise", [0.002, 0.01, 0.03])
def test_the_regret_of_noisy_tables_is_at_most_two_percent(noise: float) -> None:
    regrets = [regret_of(seed, noise) for seed in range(20)]
    assert all(map(math.isfinite, regrets)), "what does not fit or trains otherwise was recommended"
    assert fmean(regrets) <= 0.005
    assert quantiles(regrets, n=10)[-1] <= 0.02


@pytest.mark.release
def test_the_regret_of_many_tables_is_at_most_two_percent() -> None:
    for noise in (0.002, 0.01, 0.03):
        regrets = [regret_of(seed, noise) for seed in range(200)]
        assert all(map(math.isfinite, regrets))
        assert fmean(regrets) <= 0.005
        assert quantiles(regrets, n=20)[-1] <= 0.02

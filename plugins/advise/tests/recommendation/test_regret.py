"""Recommendations against an exhaustive search over the true speeds of generated tables."""

from __future__ import annotations

import math
from statistics import fmean, quantiles

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.recommend import (
    followed_regret_of,
    make_table,
    recommended,
    recorded_regrets,
    regret,
    regret_of,
)


def told_apart(noise: float, seeds: int) -> list[int]:
    """Return the seeds of tables that runs can tell apart.

    Where layouts ran one after another on a machine that drifts by 9 % a round, no rule can: the
    benchmark counts those tables too, and misses its goal by them until the command of the open
    answer, which interleaves the layouts, was run.
    """
    return [seed for seed in range(seeds) if noise < 0.03 or make_table(seed, noise).interleaved]


@settings(max_examples=6, deadline=None, derandomize=True)
@given(st.integers(0, 10**6))
def test_without_noise_the_regret_is_at_most_two_percent_on_every_table(seed: int) -> None:
    table = make_table(seed, noise=1e-6)
    assert regret(table, recommended(table, seed)) <= 0.02


@pytest.mark.parametrize("noise", [0.002, 0.01, 0.03])
def test_the_regret_of_noisy_tables_that_runs_tell_apart_is_at_most_two_percent(
    noise: float,
) -> None:
    seeds = told_apart(noise, 12)
    tables = [make_table(seed, noise) for seed in seeds]
    ranks = [recommended(table, seed) for seed, table in zip(seeds, tables, strict=True)]
    regrets = [regret(table, ranked) for table, ranked in zip(tables, ranks, strict=True)]
    assert all(map(math.isfinite, regrets)), "what does not fit or trains otherwise was recommended"
    missed = [ranked for ranked, one in zip(ranks, regrets, strict=True) if one > 0.02]
    assert not any(ranked.sure for ranked in missed), "a miss says that it is open"
    assert fmean(regrets) <= 0.005
    assert quantiles(regrets, n=10)[-1] <= 0.02


def test_every_miss_of_the_tables_that_runs_cannot_tell_apart_is_open() -> None:
    assert sure_of_misses(12) == {2: False}


def test_the_commands_of_open_answers_end_the_misses_of_layouts_that_ran_apart() -> None:
    missed = list(sure_of_misses(12))
    assert missed
    assert max(followed_regret_of(seed, 0.03) for seed in missed) <= 0.02


@pytest.mark.release
def test_every_miss_of_many_tables_that_runs_cannot_tell_apart_is_open() -> None:
    found = sure_of_misses(200)
    assert len(found) > 1
    assert not any(found.values()), found


def sure_of_misses(seeds: int) -> dict[int, bool]:
    """Return by seed whether a recommendation is sure that has a regret of over two percent.

    Of the tables that `told_apart` leaves out.
    """
    noise, found = 0.03, {}
    for seed in set(range(seeds)) - set(told_apart(noise, seeds)):
        table = make_table(seed, noise)
        ranked = recommended(table, seed)
        if regret(table, ranked) > 0.02:
            found[seed] = ranked.sure
    return found


@pytest.mark.release
@pytest.mark.parametrize("noise", [0.002, 0.01, 0.03])
def test_the_regret_of_many_tables_that_runs_tell_apart_is_at_most_two_percent(
    noise: float,
) -> None:
    regrets = [regret_of(seed, noise) for seed in told_apart(noise, 200)]
    assert all(map(math.isfinite, regrets))
    assert fmean(regrets) <= 0.005
    assert quantiles(regrets, n=20)[-1] <= 0.02


def test_the_regret_on_a_recorded_table_is_at_most_two_percent() -> None:
    regrets = recorded_regrets()
    assert len(regrets) == 25
    assert max(regrets) <= 0.02

"""The gate's rule by hand-made rounds, and its error rates over many looks by seeded simulation."""

from __future__ import annotations

import math
from statistics import fmean

import numpy as np
import pytest

from accel_bench.analysis.statistics.estimators import one_sided_p
from accel_bench.analysis.statistics.sequential import judge_comparison, look_sizes
from accel_bench.analysis.statistics.verdict import ONE_SIDED_ALPHA, Policy, compare_logs

RUNS = 1000
"""Simulated gates."""

EVERY = list(range(5, 19))
"""A look after every pair."""

NOISE = 0.004
"""Standard deviation of a process's time: 0.4 %."""


def logs(generator, count, noise, slower=1.0):
    """log(other / stack) of that many rounds."""
    other, stack = noise * generator.standard_normal((2, count))
    return other - stack - math.log(slower)


def judge_rounds(rounds, floor, looks=1, points=1):
    """What a gate makes of rounds at their look."""
    (found,) = compare_logs({"": rounds}, {"": looks}, Policy(floor=floor, points=points)).values()
    return judge_comparison(found, floor)


def gate(generator, sizes, noise, slower=1.0, floor=0.01):
    """Look at growing numbers of the same rounds until something is settled."""
    everything = list(logs(generator, sizes[-1], noise, slower))
    for look, size in enumerate(sizes, start=1):
        found = judge_rounds(everything[:size], floor, look)
        if found.outcome != "inconclusive":
            break
    return found.outcome, size


def simulate(sizes, noise=NOISE, slower=1.0, floor=0.01, seed=1):
    """Outcomes of many gates, and how many rounds they took on average."""
    generator = np.random.default_rng(seed)
    found = [gate(generator, sizes, noise, slower, floor) for _ in range(RUNS)]
    return [outcome for outcome, _ in found], float(np.mean([size for _, size in found]))


def share(outcomes, outcome):
    return outcomes.count(outcome) / len(outcomes)


def margin(rate):
    return 3 * math.sqrt(rate * (1 - rate) / RUNS)


def spread_around(mean, spread=0.002):
    """Five log-ratios with this mean and standard deviation."""
    return [mean + spread * z for z in (-1.2649, -0.6325, 0.0, 0.6325, 1.2649)]


def test_looks_double_from_the_first_to_the_most_whatever_is_seen():
    assert look_sizes(5, 5) == [5]
    assert look_sizes(5, 40) == [5, 10, 20, 40]
    assert look_sizes(5, 23) == [5, 10, 20, 23]


def test_a_slow_down_is_a_regression_when_it_is_sure_and_beyond_the_floor():
    slower = spread_around(-0.03)
    assert judge_rounds(slower, 0.01).outcome == "regression"
    assert judge_rounds(slower, 0.05).outcome == "passed"


def test_a_speed_up_passes():
    found = judge_rounds(spread_around(0.05), 0.01)
    assert (found.outcome, found.rounds_needed) == ("passed", None)
    assert found.slower_by == pytest.approx(math.expm1(-0.05))


def test_to_pass_the_bound_must_lie_within_the_floor_and_not_the_estimate_alone():
    # Standard error 0.002 / sqrt(5) = 0.000894; t(4, 0.975) = 2.776: the bound is mean + 0.00248.
    assert judge_rounds(spread_around(-0.0074), 0.01).outcome == "passed"
    found = judge_rounds(spread_around(-0.0076), 0.01)
    assert found.outcome == "inconclusive"
    assert found.slower_by == pytest.approx(math.expm1(0.0076))
    assert found.at_most == pytest.approx(math.expm1(0.0076 + 0.002483), rel=1e-3)


def test_an_open_gate_says_how_many_rounds_would_settle_it_at_the_next_look():
    # Look 2 spends a sixth of 5 %: t(n - 1, 1 - 0.05 / 6) x 0.002 / sqrt(n) < log(1.01) - 0.0076.
    # n = 7: 3.290 x 0.000756 = 0.00249; n = 8: 3.128 x 0.000707 = 0.00221; the room is 0.00235.
    assert judge_rounds(spread_around(-0.0076), 0.01).rounds_needed == 8


def test_noise_that_no_number_of_rounds_overcomes_promises_nothing():
    assert judge_rounds(spread_around(0.0, 0.5), 0.01).rounds_needed is None


def test_a_later_look_and_more_sweep_points_ask_for_more_certainty():
    slower = spread_around(-0.02, 0.006)
    assert judge_rounds(slower, 0.01, looks=1).outcome == "regression"
    assert judge_rounds(slower, 0.01, looks=4).outcome == "inconclusive"
    assert judge_rounds(slower, 0.01, points=8).outcome == "inconclusive"


def test_rounds_without_spread_are_certain():
    assert judge_rounds([0.0] * 5, 0.01).outcome == "passed"
    assert judge_rounds([-0.02] * 5, 0.01).outcome == "regression"


@pytest.mark.parametrize(
    ("sizes", "noise"),
    [
        ([5], NOISE),
        pytest.param([5], 0.05, marks=pytest.mark.release),
        pytest.param([5, 10, 20, 40], NOISE, marks=pytest.mark.release),
        ([5, 10, 20, 40], 0.05),
        pytest.param(EVERY, 0.05, marks=pytest.mark.release),
    ],
    ids=str,
)
def test_identical_code_raises_an_alarm_in_at_most_1_percent_however_often_it_is_looked_at(
    sizes, noise
):
    outcomes, _ = simulate(sizes, noise, floor=0.0001)
    assert share(outcomes, "regression") <= 0.01 + margin(0.01)


def test_without_spending_a_look_after_every_pair_would_raise_several_times_as_many_alarms():
    generator, alarms = np.random.default_rng(1), 0
    for _ in range(RUNS):
        everything = list(logs(generator, 40, 0.05))
        looks = (everything[:size] for size in range(5, 41))
        alarms += any(fmean(x) < 0 and one_sided_p(x) < ONE_SIDED_ALPHA for x in looks)
    assert alarms / RUNS > 4 * ONE_SIDED_ALPHA


@pytest.mark.parametrize(("slower", "wanted"), [(1.05, 0.95), (1.03, 0.90)])
def test_a_real_slow_down_is_found_by_five_rounds(slower, wanted):
    outcomes, rounds = simulate([5], slower=slower)
    assert share(outcomes, "regression") >= wanted
    assert rounds == 5


@pytest.mark.parametrize("sizes", [[5], [5, 10, 20, 40]], ids=str)
def test_a_slow_down_by_the_floor_passes_in_at_most_5_percent(sizes):
    outcomes, _ = simulate(sizes, slower=1.01)
    assert share(outcomes, "passed") <= 0.05 + margin(0.05)


def test_identical_code_passes_on_a_quiet_machine_mostly_at_the_first_look():
    outcomes, rounds = simulate([5, 10, 20, 40])
    assert share(outcomes, "passed") >= 0.99
    assert rounds < 7


def test_more_rounds_settle_what_five_leave_open_on_a_noisier_machine():
    first, _ = simulate([5], noise=0.015)
    more, _ = simulate([5, 10, 20, 40, 80], noise=0.015)
    assert share(first, "inconclusive") >= 0.5
    assert share(more, "passed") >= 0.85


def test_a_machine_that_is_too_noisy_leaves_the_gate_open():
    outcomes, _ = simulate([5, 10], noise=0.10, slower=1.03)
    assert share(outcomes, "inconclusive") >= 0.95


@pytest.mark.parametrize("look", [1, 3])
@pytest.mark.parametrize("mean", [0.2, 0.0, -0.004, -0.008, -0.015, -0.05])
def test_a_comparison_is_judged_as_its_rounds_are(mean, look):
    rounds = spread_around(mean)
    (compared,) = compare_logs({"fast": rounds}, {"fast": look}).values()
    assert judge_comparison(compared, 0.01).outcome == judge_rounds(rounds, 0.01, look).outcome
    assert judge_comparison(compared, 0.3).outcome == judge_rounds(rounds, 0.3, look).outcome
    few = compare_logs({"fast": rounds[:4]}, {"fast": look})["fast"]
    assert judge_comparison(few, 0.3).outcome == "inconclusive"

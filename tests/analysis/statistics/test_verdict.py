"""Verdicts by hand-made rounds, and the error rates of the rule by seeded simulation."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from accel_bench.analysis.statistics.verdict import (
    Comparison,
    Policy,
    compare_logs,
    compare_stacks,
    paired_logs,
)

RUNS = 2000
"""Simulated comparisons; three standard deviations of a 1 % share are then 0.67 %."""

FEW_RUNS = 500
"""Enough where 5 % and more may miss: what is found lies far above these shares."""


def runs(values, session="monday"):
    return {(session, index): float(value) for index, value in enumerate(values)}


def one(baseline, stack, **options) -> Comparison:
    return compare_stacks(runs(baseline), {"stack": runs(stack)}, Policy(**options))["stack"]


def noisy(generator, count, noise, factor=1.0):
    return factor * np.exp(noise * generator.standard_normal(count))


@cache
def simulate(factor, noise, runs_made=RUNS, stacks=1, seed=1):
    """Verdicts of the first stack, and whether any stack was called different, in each run."""
    generator = np.random.default_rng(seed)
    verdicts, alarms = [], 0
    for _ in range(runs_made):
        baseline = runs(noisy(generator, 5, noise))
        others = {str(n): runs(noisy(generator, 5, noise, factor)) for n in range(stacks)}
        found = [c.verdict for c in compare_stacks(baseline, others).values()]
        verdicts.append(found[0])
        alarms += any(verdict in ("better", "worse") for verdict in found)
    return verdicts, alarms


def binomial_margin(share):
    return 3 * math.sqrt(share * (1 - share) / RUNS)


BASE = [1.000, 1.002, 0.998, 1.001, 0.999]


def test_a_stack_that_surely_takes_less_time_is_faster_and_its_ratio_above_1():
    found = one(BASE, [0.8 * value for value in [1.001, 1.001, 0.999, 1.0, 1.0]])
    assert found.verdict == "better"
    assert found.ratio.median == pytest.approx(1.25, rel=1e-3)
    assert found.ratio.low < 1.25 < found.ratio.high
    assert found.rounds == 5


def test_a_stack_that_surely_takes_more_time_is_slower():
    assert one(BASE, [1.05 * value for value in reversed(BASE)]).verdict == "worse"


def test_swapping_stack_and_baseline_turns_the_verdict_round():
    stack = [0.9, 0.91, 0.905, 0.902, 0.903]
    there, back = one(BASE, stack), one(stack, BASE)
    assert (there.verdict, back.verdict) == ("better", "worse")
    assert there.ratio.median * back.ratio.median == pytest.approx(1.0)


def test_a_sure_effect_below_the_practical_floor_is_no_difference():
    found = one(BASE, [value / 1.009 for value in BASE])
    assert found.verdict == "same"


def test_a_sure_effect_above_the_floor_is_a_difference_though_within_2_percent():
    assert one(BASE, [value / 1.015 for value in BASE]).verdict == "better"


def test_the_floor_is_the_caller_s():
    stack = [value / 1.015 for value in BASE]
    assert one(BASE, stack, floor=0.02).verdict == "same"
    assert one(BASE, stack, floor=0.02).minimum_detectable_effect == 0.02
    assert one(BASE, [value / 1.009 for value in BASE], floor=0.005).verdict == "better"


def test_the_same_needs_the_whole_interval_within_2_percent():
    assert one(BASE, BASE).verdict == "same"
    assert one(BASE, [0.98, 1.02, 1.0, 1.01, 0.98]).verdict == "inconclusive"


def test_a_noisy_machine_widens_what_counts_as_the_same():
    stack = [0.98, 1.02, 1.0, 1.01, 0.98]
    assert one(BASE, stack, noise_floor=0.02).verdict == "same"


def test_four_rounds_get_no_verdict_but_the_ratio_and_what_is_missing():
    found = one(BASE[:4], [0.5] * 4)
    assert found.verdict == "not tested"
    assert found.verdict_reason == "4 of the 5 rounds that a verdict needs; 1 missing"
    assert found.ratio.median == pytest.approx(2.0, rel=1e-2)
    assert found.rounds_needed == 5


def test_one_pair_has_a_ratio_without_an_interval():
    found = one([1.0], [0.5])
    assert found.ratio.median == pytest.approx(2.0)
    assert found.ratio.low is None


def test_no_pair_has_no_ratio():
    found = one([], [0.5])
    assert (found.rounds, found.ratio, found.verdict) == (0, None, "not tested")


def test_log_ratios_are_positive_where_the_stack_took_less_time():
    assert paired_logs(runs([2.0, 1.0]), runs([1.0, 1.0])) == [pytest.approx(math.log(2)), 0.0]


def test_only_runs_of_one_session_and_round_are_pairs():
    baseline = {**runs(BASE), **runs([9.0] * 5, "tuesday")}
    stack = {**runs(BASE), **runs([1.0], "wednesday")}
    found = compare_stacks(baseline, {"stack": stack})["stack"]
    assert found.rounds == 5
    assert found.ratio.median == pytest.approx(1.0)


def test_an_open_verdict_says_what_it_could_have_seen():
    logs = [0.01, -0.02, 0.03, 0.0, 0.02]
    found = one(np.exp(logs), [1.0] * 5)
    # Mean 0.008, standard deviation 0.019235, standard error 0.008602; t(4, 0.9975) = 5.5976.
    assert found.verdict == "inconclusive"
    assert found.minimum_detectable_effect == pytest.approx(math.expm1(5.5976 * 0.008602), rel=1e-3)


def test_an_open_verdict_says_how_many_rounds_would_settle_it():
    logs = [0.01, -0.02, 0.03, 0.0, 0.02]
    found = one(np.exp(logs), [1.0] * 5)
    # "same" is reached first, at look 2, which may spend a sixth of 5 %:
    # t(n - 1, 1 - 0.05 / 6) * 0.019235 / sqrt(n) <= log(1.02) - 0.008 = 0.0118.
    # n = 18: 2.6550 * 0.004534 = 0.01204; n = 19: 2.6391 * 0.004413 = 0.01165.
    assert found.rounds_needed == 19


def test_a_hopeless_spread_promises_nothing():
    generator = np.random.default_rng(3)
    found = one(noisy(generator, 5, 0.5), noisy(generator, 5, 0.5))
    assert found.verdict == "inconclusive"
    assert found.rounds_needed is None


def test_settled_verdicts_ask_for_no_more_rounds():
    assert one(BASE, BASE).rounds_needed is None


def test_the_more_stacks_are_compared_the_surer_each_must_be():
    logs = [
        0.043,
        0.0225,
        0.03,
        0.0175,
        0.0385,
    ]  # One-sided p = 0.0008 by itself, 0.0025 among three.
    stack = runs(np.exp([-value for value in logs]))
    alone = compare_stacks(runs([1.0] * 5), {"a": stack})
    other = runs([1.0, 1.02, 0.98, 1.01, 0.99])
    together = compare_stacks(runs([1.0] * 5), {"a": stack, "b": other, "c": other})
    assert alone["a"].verdict == "better"
    assert together["a"].verdict == "inconclusive"
    assert together["a"].minimum_detectable_effect > alone["a"].minimum_detectable_effect


@pytest.mark.parametrize("noise", [pytest.param(0.004, marks=pytest.mark.release), 0.02])
def test_identical_code_is_called_different_in_at_most_1_percent(noise):
    _, alarms = simulate(1.0, noise)
    assert alarms / RUNS <= 0.01 + binomial_margin(0.01)


def test_four_identical_stacks_together_raise_no_more_false_alarms():
    _, alarms = simulate(1.0, 0.02, stacks=4, seed=2)
    assert alarms / RUNS <= 0.01 + binomial_margin(0.01)


def follow_advice(generator, noise, sessions=4):
    """Return the last verdict of one who adds the rounds that are asked for, session by session."""
    baseline, stack, rounds = {}, {}, 5
    for session in range(sessions):
        for number in range(len(stack), rounds):
            for one in (baseline, stack):
                one[f"session {session}", number] = math.exp(noise * generator.standard_normal())
        found = compare_stacks(baseline, {"stack": stack})["stack"]
        assert found.looks == session + 1
        rounds = found.rounds_needed
        if found.verdict != "inconclusive" or rounds is None:
            break
    return found.verdict, found.looks


@pytest.mark.parametrize("noise", [pytest.param(0.01, marks=pytest.mark.release), 0.02])
def test_following_the_advice_raises_a_false_alarm_in_at_most_1_percent(noise):
    generator = np.random.default_rng(4)
    found = [follow_advice(generator, noise) for _ in range(800)]
    alarms = sum(verdict in ("better", "worse") for verdict, _ in found)
    assert alarms / 800 <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / 800)
    assert sum(looks > 1 for _, looks in found) / 800 > 0.25


def test_an_interval_leaves_out_1_exactly_if_the_verdict_sees_a_difference():
    """Of up to four stacks with effects around what five to eight rounds can show, at two looks."""
    generator = np.random.default_rng(5)
    seen = set()
    for _ in range(400):
        rounds = int(generator.integers(5, 9))
        logs = {
            str(n): list(effect + 0.01 * generator.standard_normal(rounds))
            for n, effect in enumerate(generator.choice([0.0, 0.02, -0.03, 0.05], 4))
        }
        looks = {
            name: int(look) for name, look in zip(logs, generator.integers(1, 3, 4), strict=True)
        }
        for found in compare_logs(logs, looks, Policy(floor=0.0)).values():
            low, high = found.ratio.low, found.ratio.high
            sees = not low <= 1 <= high
            assert sees == (found.verdict in ("better", "worse"))
            seen.add((sees, found.verdict, found.looks))
            assert 0.99 < found.ratio.confidence < 1
    assert len(seen) >= 6


def test_a_later_look_needs_more_certainty_and_says_what_it_could_have_seen():
    stack = [value / 1.012 for value in [1.002, 0.999, 1.003, 0.998, 1.0]]
    first = one(BASE, stack)
    days = {("tuesday" if n > 2 else "monday", n): None for n in range(5)}
    second = compare_stacks(
        dict(zip(days, BASE, strict=True)), {"stack": dict(zip(days, stack, strict=True))}
    )["stack"]
    assert (first.looks, second.looks) == (1, 2)
    assert second.minimum_detectable_effect > first.minimum_detectable_effect


@pytest.mark.parametrize(("factor", "wanted"), [(1.05, 0.95), (1.03, 0.90)])
def test_a_slow_down_is_found_by_five_rounds(factor, wanted):
    verdicts, _ = simulate(factor, 0.004, FEW_RUNS)
    assert verdicts.count("worse") / FEW_RUNS >= wanted


def test_a_speed_up_is_found_as_surely_as_a_slow_down():
    verdicts, _ = simulate(1 / 1.03, 0.004, FEW_RUNS)
    assert verdicts.count("better") / FEW_RUNS >= 0.90


def test_identical_code_is_called_the_same_on_a_quiet_machine():
    verdicts, _ = simulate(1.0, 0.004, FEW_RUNS)
    assert verdicts.count("same") / FEW_RUNS >= 0.95


def test_large_noise_leaves_the_verdict_open():
    verdicts, _ = simulate(1.05, 0.10, FEW_RUNS)
    assert verdicts.count("inconclusive") / FEW_RUNS >= 0.95

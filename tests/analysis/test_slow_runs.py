"""A run that took far longer than the others is named; repeating its round is no free choice."""

from __future__ import annotations

import math

import numpy as np
import pytest

from accel_bench.analysis.statistics.verdict import compare
from accel_bench.analysis.summary import slow_runs

STEADY = (1.0, 1.002, 0.998, 1.001, 0.999)


def runs(values, session="monday"):
    return {(session, number): float(value) for number, value in enumerate(values)}


def slow_of(baseline, stack):
    return slow_runs(baseline, stack, ("baseline", "stack"))


def with_slow(place, factor):
    return [value * (factor if number == place else 1) for number, value in enumerate(STEADY)]


@pytest.mark.parametrize("of_baseline", [True, False])
def test_the_run_that_took_three_times_as_long_is_named_with_its_factor(of_baseline):
    slow, steady = runs(with_slow(2, 3.0)), runs(reversed(STEADY))
    (found,) = slow_of(slow, steady) if of_baseline else slow_of(steady, slow)
    named = (found.stack, found.session, found.round)
    assert named == ("baseline" if of_baseline else "stack", "monday", 2)
    assert found.factor == pytest.approx(3.0, rel=0.01)


def test_a_run_that_is_a_little_slower_is_none():
    assert slow_of(runs(STEADY), runs(with_slow(2, 1.3))) == []


def test_a_run_that_is_faster_than_the_others_is_none():
    assert slow_of(runs(STEADY), runs(with_slow(2, 0.3))) == []


def test_a_machine_that_is_slow_for_a_whole_round_spoils_no_pair():
    assert slow_of(runs(with_slow(2, 3.0)), runs(with_slow(2, 3.0))) == []


def test_four_rounds_are_too_few():
    assert slow_of(runs(STEADY[:4]), runs(with_slow(2, 3.0)[:4])) == []


def test_runs_that_scatter_widely_hide_none():
    wild = [1.0, 3.0, 0.4, 2.0, 0.6]
    assert slow_of(runs(STEADY), runs(wild)) == []


def test_repeating_the_named_rounds_of_identical_code_raises_no_more_false_alarms():
    """One run in eight takes three times as long, and whoever is offered a repetition takes it."""
    generator = np.random.default_rng(7)

    def seconds():
        slow = 3.0 if generator.random() < 1 / 8 else 1.0
        return slow * math.exp(0.02 * generator.standard_normal())

    alarms = repeated = 0
    for _ in range(1000):
        baseline, stack = ({("s", n): seconds() for n in range(5)} for _ in range(2))
        found = compare(baseline, stack)
        for slow in slow_of(baseline, stack) if found.verdict == "inconclusive" else ():
            repeated += 1
            for one in (baseline, stack):
                del one[slow.session, slow.round]
                one["again", slow.round] = seconds()
        alarms += compare(baseline, stack).verdict in ("better", "worse")
    assert repeated > 300
    assert alarms / 1000 <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / 1000)

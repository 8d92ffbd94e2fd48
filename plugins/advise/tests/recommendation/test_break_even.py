"""Break-even of additional start-up time against saved step time."""

from __future__ import annotations

import math
import random

import pytest
from accel_bench_advise.recommendation.break_even import break_even, fieller_ends

EXTRA, SAVED = (20.2, 20.4, 20.3), (0.1, 0.1001, 0.0999)


@pytest.mark.parametrize(
    ("job", "pays", "end"),
    [
        (180, "does not hold", "your job has 180: leave it off"),
        (1000, "holds", "your job has 1,000: use it"),
        (203, "inconclusive", "your job has 203: too near to tell"),
        (None, None, "saves 100 ms a step"),
    ],
)
def test_the_sentence_says_after_how_many_steps_and_what_to_do(
    job: float | None, pays: str | None, end: str
) -> None:
    found = break_even(("torch-compile", "baseline"), EXTRA, SAVED, job)
    assert found.steps == pytest.approx(203)
    assert found.low is not None and found.high is not None
    assert 195 < found.low < 203 < found.high < 212
    assert found.pays == pays
    assert found.sentence.startswith("torch-compile pays after 203 steps [")
    assert found.sentence.endswith(end)


def test_slower_steps_never_pay_and_one_round_has_no_interval() -> None:
    slower = break_even(("a", "b"), EXTRA, [-one for one in SAVED], 100)
    assert (slower.steps, slower.pays) == (None, "does not hold")
    assert "never pays" in slower.sentence
    single = break_even(("a", "b"), [20.0], [0.1], 1000)
    assert (single.steps, single.low, single.high, single.pays) == (
        200.0,
        None,
        None,
        "inconclusive",
    )


@pytest.mark.parametrize("saved", [(-0.001, 0.002, -0.0015), (-0.001,)])
def test_never_is_said_only_of_steps_that_are_surely_no_faster(saved: tuple[float, ...]) -> None:
    found = break_even(("a", "b"), EXTRA[: len(saved)], saved, 1e9)
    assert (found.steps, found.pays) == (None, "inconclusive")
    assert found.sentence.startswith("whether a ever pays against b cannot be told")


def test_savings_within_the_noise_have_no_upper_end() -> None:
    found = break_even(("a", "b"), [20.0, 21.0, 19.0], [0.1, -0.2, 0.2], None)
    assert found.steps is not None
    assert found.high is None


def test_the_interval_holds_the_true_ratio_as_often_as_it_says() -> None:
    draw = random.Random(1)
    inside = 0
    for _ in range(1000):
        noise = [draw.gauss(0, 1) for _ in range(5)]
        extra = [30 + 2 * one for one in noise]
        saved = [0.1 + 0.005 * one + draw.gauss(0, 0.005) for one in noise]
        low, high = fieller_ends(extra, saved)
        inside += (low or 0.0) <= 300 <= (math.inf if high is None else high)
    assert 0.93 <= inside / 1000 <= 0.97

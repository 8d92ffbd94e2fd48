"""The search of `bisect` finds a change under noise, and says none and several where that is so."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import pytest
from accel_bench_ab.bisect_search import BisectAnswer, Bisection, Comparing, MoreRounds

HISTORIES = [pytest.param(30, id="few"), pytest.param(200, marks=pytest.mark.release, id="many")]
VERSIONS = 64
STEP = math.log(1.05)


def simulate(
    effects: Sequence[float],
    noise: Callable[[], float],
    most: int = 80,
    broken: Collection[int] = (),
) -> tuple[BisectAnswer, Bisection]:
    """Search a history whose versions have these log-costs, in rounds of random order."""
    bisection, order = Bisection(len(effects), 0.02, most), random.Random(1)
    while isinstance(more := bisection.next(), MoreRounds):
        failing = [one for one in more.comparing.versions if one in broken]
        bisection.skipped |= dict.fromkeys(failing, "it does not build")
        for _ in range(0 if failing else more.rounds):
            turns = order.sample(more.comparing.versions, len(more.comparing.versions))
            bisection.add(more.comparing, {one: math.exp(noise() + effects[one]) for one in turns})
    return more, bisection


def steps_at(*places: int) -> list[float]:
    """Log-costs of a history with a change of 5 % at each of these places."""
    return [sum(STEP for place in places if one >= place) for one in range(VERSIONS)]


def noise_of(seed: int, spread: float) -> Callable[[], float]:
    """Log-costs that drift, with an independent part for each run and outliers."""
    draw, state = random.Random(seed), 0.0

    def run() -> float:
        nonlocal state
        state = 0.8 * state + draw.gauss(0, spread)
        far = draw.expovariate(10) if draw.random() < 0.01 else 0.0
        return state + far + draw.gauss(0, spread)

    return run


@pytest.mark.parametrize("histories", HISTORIES)
@pytest.mark.parametrize("spread", [0.002, 0.01])
def test_a_change_of_5_percent_among_64_versions_is_found_in_few_probes(
    spread: float, histories: int
) -> None:
    draw, answers = random.Random(5), Counter[str]()
    for seed in range(histories):
        place = draw.randrange(1, VERSIONS)
        answer, bisection = simulate(steps_at(place), noise_of(seed, spread))
        right = answer.kind == "culprit" and answer.first_bad == place
        answers["right" if right else answer.kind] += 1
        assert bisection.probes <= 8
    wrong = histories - answers["right"] - answers["inconclusive"]
    assert wrong <= 0.05 * histories, answers
    assert answers["right"] > 0.7 * histories, answers


@pytest.mark.parametrize("histories", HISTORIES)
@pytest.mark.parametrize("spread", [0.002, 0.01])
def test_an_unchanged_history_has_no_culprit(spread: float, histories: int) -> None:
    found = Counter(
        simulate(steps_at(), noise_of(seed, spread))[0].kind for seed in range(histories)
    )
    assert found["none"] + found["inconclusive"] >= 0.99 * histories
    assert found["none"] > 0.7 * histories, found


@pytest.mark.parametrize("histories", HISTORIES)
@pytest.mark.parametrize("spread", [0.002, 0.01])
def test_two_changes_are_several(spread: float, histories: int) -> None:
    draw, found = random.Random(6), Counter[str]()
    for seed in range(histories):
        places = draw.sample(range(1, VERSIONS), 2)
        found[simulate(steps_at(*places), noise_of(seed, spread))[0].kind] += 1
    assert found["several"] >= 0.9 * histories, found
    assert found["culprit"] + found["none"] <= 0.05 * histories, found


def test_a_slower_and_a_faster_change_are_several() -> None:
    effects = [0.1 * (one >= 20) - 0.05 * (one >= 40) for one in range(VERSIONS)]
    assert simulate(effects, noise_of(1, 0.002))[0].kind == "several"


def test_versions_that_cannot_be_measured_leave_candidates() -> None:
    answer, bisection = simulate(steps_at(30), noise_of(1, 0.002), broken=range(28, 32))
    assert (answer.kind, answer.last_good, answer.first_bad) == ("candidates", 27, 32)
    assert set(bisection.skipped) == {28, 29, 30, 31}


def test_a_long_stretch_that_does_not_build_is_left_soon() -> None:
    answer, bisection = simulate(steps_at(5), noise_of(1, 0.002), broken=range(10, 60))
    assert (answer.kind, answer.first_bad) == ("culprit", 5)
    assert len(bisection.skipped) <= 4


def test_a_search_goes_on_from_the_rounds_that_are_known() -> None:
    effects = steps_at(40)
    whole, done = simulate(effects, noise_of(3, 0.002))
    again = Bisection(VERSIONS, 0.02, 80)
    for comparing, rounds in done.rounds.items():
        more = again.next()
        assert isinstance(more, MoreRounds)
        assert more.comparing == comparing, "the next comparison follows from the rounds alone"
        for costs in rounds[:3]:
            again.add(comparing, costs)
        more = again.next()
        assert isinstance(more, MoreRounds)
        assert more.comparing == comparing
        assert more.rounds == 2
        for costs in rounds[3:]:
            again.add(comparing, costs)
    assert again.next() == whole


def test_a_cost_that_does_not_scatter_needs_five_rounds_of_each_comparison() -> None:
    answer, bisection = simulate(steps_at(40), lambda: 0.0)
    assert (answer.kind, answer.first_bad) == ("culprit", 40)
    assert {len(own) for own in bisection.rounds.values()} == {5}


def test_a_bad_end_that_is_faster_is_no_slower_version() -> None:
    effects = [-0.1 * (one >= 20) for one in range(VERSIONS)]
    answer, bisection = simulate(effects, noise_of(1, 0.002))
    assert answer.kind == "none"
    assert not bisection.probes


def test_two_versions_need_no_probe_and_are_confirmed() -> None:
    answer, bisection = simulate([0.0, STEP], noise_of(1, 0.002))
    assert (answer.kind, answer.last_good, answer.first_bad) == ("culprit", 0, 1)
    assert Comparing("neighbours", (0, 1)) in bisection.rounds


def test_a_probe_that_was_judged_wrongly_gives_no_answer_but_where_to_look() -> None:
    bisection = Bisection(3, 0.02, 5)
    effects = [0.0, STEP, STEP]
    while isinstance(more := bisection.next(), MoreRounds):
        misled = {1: 0.0} if more.comparing.kind == "probe" else {}
        costs = {one: math.exp(misled.get(one, effects[one])) for one in more.comparing.versions}
        for _ in range(more.rounds):
            bisection.add(more.comparing, costs)
    assert (more.kind, more.last_good, more.first_bad) == ("inconclusive", 1, 2)
    assert more.reason == "fresh rounds show it between versions 0 and 1: bisect these"

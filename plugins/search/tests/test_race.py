"""A race drops stacks that are surely not the best, and hardly ever the best one."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from accel_bench_search.race import run_race
from analysis_factory import FAST, LORA, NF4, STEADY, make_rank, make_result, make_rounds, scaled
from serving_factory import serving

from accel_bench.analysis.aggregate import PlannedSummary
from accel_bench.analysis.race import race_looks
from accel_bench.analysis.schema import Summary
from accel_bench.analysis.statistics.verdict import RoundKey
from accel_bench.analysis.summary import summarize
from accel_bench.report.formats import render
from accel_bench.result import Status

ROUNDS = 40


def noisy_race(generator: random.Random, speeds: Mapping[str, float]) -> dict[str, list[float]]:
    """Seconds per token in rounds that drift, are alike when near, and have outliers."""
    drift, load = 0.0, 0.0
    times: dict[str, list[float]] = {name: [] for name in speeds}
    for _ in range(ROUNDS):
        drift += 0.002
        load = 0.8 * load + generator.gauss(0, 0.02)
        for name, speed in speeds.items():
            noise = generator.gauss(0, 0.03) + (0.3 if generator.random() < 0.02 else 0.0)
            times[name].append(2.718 ** (drift + load + noise) / speed)
    return times


def keyed(times: Mapping[str, Sequence[float]]) -> dict[str, dict[RoundKey, float]]:
    """The same by session and round."""
    return {
        name: {("monday", number): one for number, one in enumerate(seconds)}
        for name, seconds in times.items()
    }


def dropped(times: Mapping[str, Sequence[float]], rounds: int = ROUNDS) -> list[str]:
    """Names of the stacks that a race drops, where all train the same."""
    return [one.stack for one in run_race(keyed(times), "a", rounds, lambda *_: True)]


def test_the_best_stack_is_dropped_in_at_most_the_promised_part_of_races() -> None:
    generator = random.Random(1)
    races, lost = 600, 0
    for _ in range(races):
        # b is the best by nothing: the hardest case, where all the others are as good.
        times = noisy_race(generator, dict.fromkeys("abcd", 1.0))
        lost += "b" in dropped(times)
    # At most 0.5 %, which are 3; Bonferroni's inequality and the floor leave fewer.
    assert lost == 0


def test_what_is_far_behind_is_dropped_early_and_the_best_stays() -> None:
    generator = random.Random(2)
    speeds = {"a": 1.0, "b": 1.3, "c": 0.7, "d": 1.28}
    saved, best = 0, 0
    for _ in range(50):
        drops = run_race(keyed(noisy_race(generator, speeds)), "a", ROUNDS, lambda *_: True)
        saved += sum(ROUNDS - one.rounds for one in drops)
        best += "b" not in [one.stack for one in drops]
    assert best == 50
    assert saved > 50 * 0.8 * (ROUNDS - 5), "c hardly ever runs more than a few rounds"


def test_looks_are_fixed_beforehand_and_need_rounds_after_them() -> None:
    assert race_looks(5) == ()
    assert race_looks(6) == (5,)
    assert race_looks(40) == (5, 10, 20)
    times = noisy_race(random.Random(3), {"a": 1.0, "b": 0.5})
    few = {name: seconds[:4] for name, seconds in times.items()}
    assert dropped(few) == []
    assert dropped({name: seconds[:5] for name, seconds in times.items()}) == ["b"]
    assert dropped(times, rounds=5) == [], "there is nothing left to save"


def test_the_baseline_stays_and_drops_others() -> None:
    times = noisy_race(random.Random(4), {"a": 1.0, "b": 2.0})
    assert dropped(times) == []
    times = noisy_race(random.Random(4), {"a": 2.0, "b": 1.0})
    assert dropped(times) == ["b"]


def test_a_fast_stack_that_trains_otherwise_drops_none() -> None:
    times = keyed(noisy_race(random.Random(5), {"a": 1.0, "b": 1.0, "cheat": 3.0}))
    assert run_race(times, "a", ROUNDS, lambda name, _: name != "cheat") == []
    found = run_race(times, "a", ROUNDS, lambda *_: True)
    assert [(one.stack, one.rival) for one in found] == [("b", "cheat")]


def race_of_three(**changes: Any) -> Summary:
    """Twelve rounds of a baseline and a fast stack, and five of one that is half as fast as it."""
    steady = [one * second for second in (1.0, 1.001, 0.999) for one in STEADY[:4]]
    fast = make_rounds(FAST, [second / 2 for second in steady], **changes)
    slow = make_rounds(NF4, scaled(0.9))
    planned = [PlannedSummary(experiment=one) for one in (LORA, FAST, NF4)]
    results = [*make_rounds(LORA, steady), *fast, *slow]
    return summarize("peft", "lora", planned, results, 12, race=True)


def test_the_row_of_a_dropped_stack_says_so_and_no_round_of_it_is_missing() -> None:
    summary = race_of_three()
    _, fast, slow = summary.experiments
    assert (slow.status, slow.runs, slow.verdict_word) == (Status.OK, 5, "faster")
    assert slow.dropped.startswith("dropped by --race after 5 rounds: surely slower than fast, 0.5")
    assert (fast.status, fast.runs, fast.dropped) == (Status.OK, 12, "")
    assert summary.race is not None
    assert summary.race.text.startswith("race: 1 stack dropped, 7 of 36 runs and about 7 s saved")
    text = render([summary], "markdown")
    assert "| faster (dropped) |" in text
    assert "nf4: dropped by --race after 5 rounds" in text


def test_a_stack_that_is_not_shown_to_train_the_same_drops_none_in_a_summary() -> None:
    summary = race_of_three(ranks=[make_rank(step_seconds=(0.05, 0.05), losses=[3.0, 2.9, 2.8])])
    assert summary.race is not None
    assert summary.race.drops == ()
    assert "nothing was saved" in summary.race.text
    assert summary.experiments[2].status is Status.INTERRUPTED, "its rounds are missing"


def test_a_stack_that_fails_later_takes_back_none_of_its_drops() -> None:
    planned = [PlannedSummary(experiment=one) for one in (LORA, FAST, NF4)]
    others = [*make_rounds(LORA, scaled(1.0)), *make_rounds(NF4, scaled(0.9))]
    fast = make_rounds(FAST, scaled(0.5))
    for status in (Status.OOM, Status.INVALID):
        later = make_result(FAST, round=5, status=status, reasons=["so it ended"])
        summary = summarize("peft", "lora", planned, [*others, *fast, later], 12, race=True)
        assert summary.experiments[2].dropped.startswith("dropped by --race after 5 rounds")
        assert summary.experiments[2].status is Status.OK


def test_a_rival_that_a_later_session_runs_again_takes_back_no_drop() -> None:
    """It shares no round with what was dropped before."""
    planned = [PlannedSummary(experiment=one) for one in (LORA, FAST, NF4)]
    monday = [*make_rounds(LORA, scaled(1.0)), *make_rounds(NF4, scaled(2.0))]
    failed = make_result(FAST, status=Status.FAILED, reasons=["so it ended"])
    tuesday = [
        run for one in (LORA, FAST) for run in make_rounds(one, scaled(1.0), session="tuesday")
    ]
    for results in ([*monday, failed], [*monday, failed, *tuesday]):
        rows = summarize("peft", "lora", planned, results, 12, race=True).experiments
        assert rows[2].dropped.startswith("dropped by --race after 5 rounds")
        assert rows[2].status is Status.OK


def test_a_stack_that_ran_out_of_memory_does_not_end_the_race_of_the_others() -> None:
    times = keyed(noisy_race(random.Random(4), dict.fromkeys("abc", 1.0)))
    slow = {key: 1.02 * second for key, second in times["a"].items()}
    slow |= {key: 0.9 * slow[key] for key in list(slow)[:5]}  # not slower at the first look
    few = {key: times["b"][key] for key in list(times["b"])[:6]}
    racing = {"a": times["a"], "b": few, "c": {key: 3 * second for key, second in slow.items()}}
    racing["c"] |= {key: times["a"][key] for key in list(slow)[:2]}
    assert run_race(racing, "a", ROUNDS, lambda *_: True) == []
    found = run_race(racing, "a", ROUNDS, lambda *_: True, failed=["b"])
    assert [(one.stack, one.rounds) for one in found] == [("c", 10)]


def race_of_servers(**full: bool) -> list[tuple[str, str]]:
    """What a race at 4 requests/s drops, and by whom: the late one has the higher busy speed."""
    stacks = [
        serving("base", 100, seconds=0.1, rounds=12, saturated=full.get("base", False)),
        serving("soon", 50, seconds=0.2, rounds=12, saturated=full.get("soon", False)),
        serving("late", 200, seconds=0.05, rounds=5),
    ]
    planned = [PlannedSummary(experiment=runs[0].experiment) for runs in stacks]
    results = [run for runs in stacks for run in runs]
    summary = summarize("served", "base", planned, results, 12, race=True)
    assert summary.race is not None
    return [(one.stack, one.rival) for one in summary.race.drops]


def test_at_a_rate_the_latency_decides_a_race_and_what_is_saturated_drops_none() -> None:
    assert race_of_servers() == [("late", "soon")]
    assert race_of_servers(soon=True) == [("late", "base")]
    assert race_of_servers(soon=True, base=True) == []

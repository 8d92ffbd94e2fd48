"""Judgement of a trial: loss after a budget, constraints, and the winner's check."""

from __future__ import annotations

import math
from typing import Any

import pytest
from accel_bench_search.trial_judgement import (
    beats,
    best_of,
    check_losses,
    dominated,
    judge_trial,
    loss_at,
    steps_to_reach,
    with_answer,
)
from accel_bench_search.tune_report import Objective, TuneReport, TuneTrial
from analysis_factory import TOKENS, make_experiment, make_rank, make_result
from learning_factory import learned
from serving_factory import serving

from accel_bench.analysis.learning.curves import training_curve
from accel_bench.documents.base import JsonValue
from accel_bench.result import Result, Status

SPEED = Objective(goal="tokens_per_second")


def loss(unit: str, amount: float, price: float | None = None) -> Objective:
    """The loss after a budget."""
    return Objective.model_validate(
        {"goal": "loss", "unit": unit, "amount": amount, "usd_per_hour": price}
    )


def make_run(losses: list[float | None], number: int = 0) -> Result:
    """A run of one warm-up step of half a second and steps of a tenth."""
    steps = [0.1] * (len(losses) - 1)
    return make_result(round=number, ranks=[make_rank(step_seconds=steps, losses=losses)])


FALLING: list[float | None] = [float(10 - step) for step in range(10)]


def test_the_curve_counts_warm_up_as_training() -> None:
    curve = training_curve(make_run(FALLING))
    assert [round(point.seconds, 6) for point in curve[:3]] == [0.5, 0.6, 0.7]
    assert [point.tokens for point in curve[:3]] == [TOKENS, 2 * TOKENS, 3 * TOKENS]


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        (loss("tokens", 7 * TOKENS), 6.0),  # mean of 8, 7, 6, 5, 4
        (loss("tokens", 6.5 * TOKENS), 6.0),
        (loss("seconds", 1.05), 6.0),
        (loss("dollars", 1.05, price=3600), 6.0),
        (loss("tokens", TOKENS), 10.0),
        (loss("tokens", 11 * TOKENS), None),
    ],
)
def test_the_loss_is_the_mean_of_the_last_steps_until_then(
    objective: Objective, expected: float | None
) -> None:
    assert loss_at(make_run(FALLING), objective) == expected


def test_a_loss_that_is_not_finite_there_counts_as_none() -> None:
    run = make_run([*FALLING[:5], None, *FALLING[6:]])
    assert loss_at(run, loss("tokens", 7 * TOKENS)) == math.inf
    trial = judge_trial(1, {}, run, run, loss("tokens", 7 * TOKENS))
    assert (trial.outcome, trial.reason) == ("infeasible", "its loss is not finite")


def test_the_validation_loss_decides_where_held_out_samples_were_evaluated() -> None:
    """It is evaluated after 0, 3, 4 and 5 steps of 100 tokens each."""
    run = learned([5.0, 4.0, 3.0, 2.5])
    found = [loss_at(run, loss("tokens", amount)) for amount in (250, 300, 301, 500, 501)]
    assert found == [4.0, 4.0, 3.0, 2.5, None]
    assert judge_trial(1, {}, run, run, loss("tokens", 400)).value == 3.0
    assert loss_at(learned([5.0, 4.0, None]), loss("tokens", 400)) == math.inf


def test_a_run_that_is_too_short_says_how_many_steps_it_takes() -> None:
    run = make_run(FALLING)
    assert steps_to_reach(training_curve(run), loss("seconds", 100)) == 1105
    trial = judge_trial(1, {}, run, run, loss("seconds", 100))
    assert (trial.outcome, trial.reason) == ("infeasible", "it ended before 100 seconds")


def test_a_rate_can_win_although_it_trains_otherwise() -> None:
    base, better = make_run(FALLING), make_run([one and one / 2 for one in FALLING], 1)
    objective = loss("tokens", 7 * TOKENS)
    trials = [
        judge_trial(n, {"rate": n}, run, base, objective) for n, run in enumerate([base, better])
    ]
    best = best_of(trials, objective)
    assert best is trials[1]
    assert beats(best, trials[0], objective)
    speed = judge_trial(1, {"rate": 1}, better, base, SPEED)
    assert speed.outcome == "infeasible"
    assert "its loss differs" in speed.reason


def test_constraints_and_endings_are_told_apart() -> None:
    base = make_run(FALLING)
    limited = Objective(goal="tokens_per_second", memory_below_bytes=1000)
    assert judge_trial(1, {}, base, base, limited).reason.startswith("its peak of 1,000 bytes is")
    below = Objective(goal="tokens_per_second", memory_below_bytes=1001)
    assert judge_trial(1, {}, base, base, below).outcome == "ok"
    for status, outcome in ((Status.OOM, "out of memory"), (Status.TIMEOUT, "failed")):
        ended = make_result(status=status, reasons=["so it ended"])
        trial = judge_trial(1, {}, ended, base, SPEED)
        assert trial.outcome == outcome
        assert "so it ended" in trial.reason
    unlike = make_result(
        make_experiment(scenario={"train": {"matmul_precision": "high"}}),
        round=1,
        ranks=[make_rank(step_seconds=[0.1] * 9, losses=FALLING)],
    )
    assert "not comparable" in judge_trial(1, {}, unlike, base, SPEED).reason


def test_only_what_takes_as_much_memory_in_everything_else_is_pruned() -> None:
    def trial(outcome: str, **parameters: int) -> TuneTrial:
        keys = {"batch": "train.micro_batch_size", "layers": "model.overrides.num_hidden_layers"}
        values = {keys[name]: value for name, value in parameters.items()}
        return TuneTrial.model_validate({"number": 1, "parameters": values, "outcome": outcome})

    oom = [trial("out of memory", batch=8, layers=2), trial("failed", batch=2, layers=2)]
    assert dominated(trial("ok", batch=9, layers=2).parameters, oom) is oom[0]
    assert dominated(trial("ok", batch=7, layers=2).parameters, oom) is None
    assert dominated(trial("ok", batch=9, layers=1).parameters, oom) is None


def test_a_lower_loss_is_called_better_only_where_seeds_show_it() -> None:
    sure = [(2.0, 1.5), (2.1, 1.6), (1.9, 1.45), (2.0, 1.52), (2.05, 1.5)]
    found = check_losses(sure, "loss at 60 seconds", "monday")
    assert (found.verdict, found.rounds) == ("better", 5)
    assert "over 5 seeds its loss at 60 seconds is surely 24.7 % lower" in found.reason
    assert check_losses([(b, a) for a, b in sure], "loss", "monday").verdict == "worse"
    assert check_losses(sure[:4], "loss", "monday").verdict == "not tested", "fewer than 5 seeds"
    scattered = [(2.0, 1.9), (2.0, 2.2), (2.0, 1.7), (2.0, 2.1), (2.0, 1.95)]
    assert check_losses(scattered, "loss", "monday").verdict == "inconclusive"
    assert check_losses([], "loss", "monday").ratio is None


def test_a_seed_that_diverges_is_worse_and_a_baseline_that_does_has_no_ratio() -> None:
    sure = [(2.0, 1.5), (2.1, 1.6), (1.9, 1.45), (2.0, 1.52)]
    found = check_losses([*sure, (2.0, math.inf)], "loss at 60 seconds", "monday")
    assert (found.verdict, found.rounds, found.ratio) == ("worse", 5, None)
    assert found.reason == (
        "over 5 seeds its loss at 60 seconds is worse than the baseline's: it is not finite with "
        "1 seed"
    )
    found = check_losses([*sure, (math.inf, 1.5)], "loss", "monday")
    assert (found.verdict, found.ratio) == ("inconclusive", None)
    assert "has no ratio to the baseline's, which is not finite with 1 seed" in found.reason


def test_later_looks_need_a_surer_loss() -> None:
    pairs = [(2.0, 1.5), (2.0, 1.7), (2.0, 1.4), (2.0, 1.75), (2.0, 1.6)]
    assert check_losses(pairs, "loss", "monday").verdict == "better"
    assert check_losses(pairs, "loss", "monday", looks=4).verdict == "inconclusive"


def report(best: dict[str, JsonValue], *others: TuneTrial) -> TuneReport:
    """The report of a study with a confirmed winner."""
    trials = [TuneTrial(number=0, parameters=best, outcome="ok", value=2.0, run_id="b"), *others]
    return TuneReport(
        scenario="some",
        stack="lora",
        stack_sets=("train.micro_batch_size",),
        study="some/lora",
        objective=loss("tokens", 10),
        baseline=TuneTrial(number=None, parameters={}, outcome="ok", value=3.0, run_id="a"),
        trials=tuple(trials),
        best=trials[0],
        check=check_losses([(2.0, 1.5 + seed / 100) for seed in range(5)], "loss", "monday"),
    )


def test_the_smallest_value_that_does_not_fit_is_named_where_one_of_them_is_null() -> None:
    key = "train.micro_batch_size"
    oom = [TuneTrial(number=n, parameters={key: n}, outcome="out of memory") for n in (4, 2)]
    none = TuneTrial(number=3, parameters={key: None}, outcome="out of memory")
    answer = with_answer(report({key: 1}, none, *oom)).answer
    assert answer.startswith(f"First fit: 3 of 4 trials ran out of memory, such as {key}=2.")


def test_the_advice_is_what_the_command_line_and_the_scenario_take() -> None:
    values: dict[str, JsonValue] = {"train.gradient_checkpointing": True, "optimizer.eps": None}
    answer = with_answer(report({**values, "train.micro_batch_size": 4})).answer
    assert answer.endswith(
        "Use --set train.gradient_checkpointing=true --set optimizer.eps=null, and "
        "`set: {train.micro_batch_size: 4}` in the stack lora of the scenario."
    )


def test_at_a_rate_the_soonest_answer_wins_and_a_saturated_server_does_not_count() -> None:
    latency = Objective(goal="request_seconds")

    def trial(number: int, ms: float, **changes: Any) -> TuneTrial:
        (run,) = serving("tuned", ms, rounds=1, **changes)
        return judge_trial(number, {"inference.batch_size": number}, run, base, latency)

    (base,) = serving("base", 100, rounds=1)
    late, soon = trial(1, 200, seconds=0.01), trial(2, 50, seconds=0.5)
    full, other = trial(3, 10, saturated=True), trial(4, 10, answer=(1, 2))
    assert (late.value, soon.value) == (0.2, 0.05)
    assert (full.outcome, full.reason) == (
        "infeasible",
        "it is saturated: requests pile up at this rate",
    )
    assert (other.outcome, other.value) == ("infeasible", None)
    assert other.reason.startswith("different (")
    baseline = judge_trial(None, {}, base, base, latency)
    trials = [late, soon, full, other]
    best = best_of(trials, latency)
    assert best is soon
    assert beats(best, baseline, latency) and not beats(late, baseline, latency)
    report = TuneReport(
        scenario="served",
        stack="base",
        study="s",
        objective=latency,
        baseline=baseline,
        trials=tuple(trials),
        best=best,
    )
    assert "the best latency of the median request has inference.batch_size=2 with 50.0 ms" in (
        with_answer(report).answer
    )


def test_what_answers_the_same_counts_in_a_search_for_speed() -> None:
    (base,), (run,) = serving("base", 9, rate=None, rounds=1), serving("x", 9, rate=None, rounds=1)
    assert judge_trial(1, {}, run, base, SPEED).outcome == "ok"

"""The loss at the end over several seeds: equivalent, different, or not settled."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import pytest
from accel_bench_report.seeds import (
    NAME,
    SeedEquivalence,
    detectable_difference,
    judge_differences,
)
from analysis_factory import (
    STEADY,
    make_experiment,
    make_rank,
    make_result,
    make_rounds,
    make_summary,
)

from accel_bench.analysis.aggregate import PlannedSummary
from accel_bench.analysis.summary import summarize
from accel_bench.report.formats import render
from accel_bench.result import Result, Status

STEPS = 8


def over_seeds(ends: Sequence[tuple[float, float]], **sweep: Any) -> tuple[SeedEquivalence, ...]:
    """Summarize a baseline and a stack, whose losses end as given for each seed."""
    planned, results = [], []
    for seed, pair in enumerate(ends):
        point = {**sweep, "train.seed": seed, "data.seed": seed}
        for stack, end in zip(("baseline", "stack"), pair, strict=True):
            experiment = make_experiment(stack, sweep=point)
            rank = make_rank(step_seconds=[0.1] * STEPS, losses=[5.0] * 4 + [end] * 5)
            planned.append(PlannedSummary(experiment=experiment))
            results.append(make_result(experiment, ranks=[rank]))
    return summarize("s", "baseline", planned, results, 1).sections[NAME]


def test_losses_that_end_alike_are_equivalent() -> None:
    (row,) = over_seeds([(2.0, 2.0002), (2.1, 2.0999), (1.9, 1.9001), (2.0, 2.0)])
    assert (row.stack, row.seeds, row.verdict) == ("stack", 4, "equivalent")
    assert row.tolerance == pytest.approx(1e-3)
    assert row.low is not None and row.difference is not None and row.high is not None
    assert row.low <= row.difference <= row.high


def test_losses_that_end_higher_with_every_seed_are_different() -> None:
    (row,) = over_seeds([(2.0, 2.1), (2.1, 2.2), (1.9, 2.0)])
    assert row.verdict == "different"
    assert row.difference == pytest.approx(0.05, abs=0.003)


def test_losses_that_scatter_settle_nothing() -> None:
    (row,) = over_seeds([(2.0, 2.1), (2.0, 1.9), (2.0, 2.05), (2.0, 1.96)])
    assert row.verdict == "inconclusive"


def test_two_seeds_are_too_few() -> None:
    (row,) = over_seeds([(2.0, 2.0), (2.0, 2.0)])
    assert (row.seeds, row.verdict) == (2, "not tested")


def test_other_axes_are_compared_each_for_itself() -> None:
    rows = over_seeds([(2.0, 2.0)] * 3, **{"data.sequence_length": 16})
    assert rows[0].sweep == {"data.sequence_length": 16}


def test_without_a_swept_seed_nothing_is_said() -> None:
    experiment = make_experiment("baseline")
    planned = [PlannedSummary(experiment=experiment)]
    assert summarize("s", "baseline", planned, [make_result(experiment)], 1).sections == {}


def test_a_difference_at_the_tolerance_is_rarely_called_equivalent() -> None:
    """Two one-sided tests of 5 %: at the edge at most one comparison in twenty passes."""
    dice = random.Random(1)
    called = sum(
        judge_differences([dice.gauss(1e-3, 2e-4) for _ in range(5)], 1e-3) == "equivalent"
        for _ in range(4000)
    )
    assert called / 4000 <= 0.06


def test_the_same_steps_are_compared_where_one_stack_took_more() -> None:
    """A window that was disturbed and measured again makes more steps, and a lower last loss."""
    planned, results = [], []
    curve = [5.0 - 0.1 * step for step in range(30)]
    for seed in range(3):
        for stack, steps in (("baseline", 10), ("stack", 20)):
            experiment = make_experiment(stack, sweep={"train.seed": seed, "data.seed": seed})
            rank = make_rank(step_seconds=[0.1] * steps, losses=curve[: steps + 1])
            planned.append(PlannedSummary(experiment=experiment))
            results.append(make_result(experiment, ranks=[rank]))
    (row,) = summarize("s", "baseline", planned, results, 1).sections[NAME]
    assert (row.verdict, row.difference) == ("equivalent", 0.0)


def test_a_seed_on_which_only_the_stack_did_not_train_makes_it_different() -> None:
    planned, results = [], []
    for seed in range(4):
        for stack in ("baseline", "stack"):
            experiment = make_experiment(stack, sweep={"train.seed": seed, "data.seed": seed})
            bad = stack == "stack" and seed == 3
            planned.append(PlannedSummary(experiment=experiment))
            results.append(make_result(experiment, status=Status.INVALID if bad else Status.OK))
    (row,) = summarize("s", "baseline", planned, results, 1).sections[NAME]
    assert (row.seeds, row.lost, row.verdict) == (3, 1, "different")


def scattered(dice: random.Random, mean: float, seeds: int) -> list[float]:
    """Differences of the losses at the end, over seeds."""
    return [dice.gauss(mean, 5e-4) for _ in range(seeds)]


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_the_detectable_difference_is_called_different_in_8_of_10_comparisons(seeds: int) -> None:
    dice = random.Random(2)
    found = [detectable_difference(scattered(dice, 0.0, seeds), 1e-3) for _ in range(2000)]
    typical = fmean(one for one in found if one is not None)
    called = sum(
        judge_differences(scattered(dice, typical, seeds), 1e-3) == "different" for _ in range(2000)
    )
    assert called / 2000 == pytest.approx(0.80, abs=0.08)


def test_more_seeds_show_smaller_differences_and_one_shows_none() -> None:
    few, many = ([2e-4 * (-1) ** n for n in range(seeds)] for seeds in (4, 16))
    smaller, larger = (detectable_difference(one, 1e-3) for one in (many, few))
    assert smaller is not None
    assert larger is not None
    assert 1e-3 < smaller < larger
    assert detectable_difference([0.0], 1e-3) is None


def test_the_line_says_what_so_many_seeds_could_have_shown() -> None:
    pairs = [(2.0, 2.1), (2.0, 1.9), (2.0, 2.05), (2.0, 1.96)]
    planned, results = [], []
    for seed, pair in enumerate(pairs):
        for stack, end in zip(("baseline", "stack"), pair, strict=True):
            experiment = make_experiment(stack, sweep={"train.seed": seed})
            rank = make_rank(step_seconds=[0.1] * STEPS, losses=[5.0] * 4 + [end] * 5)
            planned.append(PlannedSummary(experiment=experiment))
            results.append(make_result(experiment, ranks=[rank]))
    summary = summarize("s", "baseline", planned, results, 1)
    (row,) = summary.sections[NAME]
    assert row.minimum_detectable_difference is not None
    text = " ".join(render([summary], "table").split())
    assert f"4 seeds show differences above {row.minimum_detectable_difference:.2%}" in text


def doubled(result: Result) -> Result:
    """The same run, whose audit finds that it counts two tokens for one."""
    rank = result.ranks[0]
    assert rank.window is not None
    samples = tuple(s.model_copy(update={"real_tokens": 200}) for s in rank.window.samples)
    window = rank.window.model_copy(update={"samples": samples})
    return result.model_copy(update={"ranks": (rank.model_copy(update={"window": window}),)})


def test_the_loss_of_runs_that_failed_their_audit_says_nothing_over_seeds() -> None:
    plans = [
        make_experiment(stack, sweep={"train.seed": seed})
        for seed in range(3)
        for stack in ("lora", "fast")
    ]
    runs = [run for plan in plans for run in make_rounds(plan, STEADY)]
    assert make_summary(plans, runs).sections[NAME][0].verdict == "equivalent"
    marked = [doubled(run) if run.experiment.stack.name == "fast" else run for run in runs]
    found = make_summary(plans, marked).sections[NAME][0]
    assert (found.verdict, found.seeds, found.lost) == ("not tested", 0, 0)

"""The compared quantity: by name, direction and unit, and what forbids a comparison by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from analysis_factory import (
    STEADY,
    make_experiment,
    make_failures,
    make_rank,
    make_result,
    make_summary,
)

from accel_bench.analysis.aggregate import PlannedSummary
from accel_bench.analysis.compare import compare_stored
from accel_bench.analysis.conclusion import conclusion
from accel_bench.analysis.metrics.offered_load import MEDIAN_LATENCY
from accel_bench.analysis.quantity import QUANTITIES, Quantity, compared_by
from accel_bench.analysis.summary import collect_raced, judge_row
from accel_bench.report.formats import render
from accel_bench.report.views.run_table import stack_columns
from accel_bench.result import Metric, Result, Status

JOULES = (2.0, 2.01, 1.99, 2.005, 1.995)
"""Energy of five runs with a quarter of a percent of noise."""


def energy(value: float | None, better: str = "lower", **other: Any) -> Metric:
    return Metric(
        **{"name": "joules_per_token", "unit": "J/token", "plugin": "meter", **other},
        value=value,
        scope="rank",
        better=better,
    )


def rounds(
    stack: str, factor: float, compare: str | None = "joules_per_token", **metric: Any
) -> list[Result]:
    """Five runs of one speed, whose energy is `factor` times that of the baseline."""
    experiment = make_experiment(stack)
    found = []
    for number, (seconds, joules) in enumerate(zip(STEADY, JOULES, strict=True)):
        rank = make_rank(step_seconds=(seconds, seconds))
        measured = energy(factor * joules, **metric)
        ranks = [rank.model_copy(update={"metrics": (*rank.metrics, measured)})]
        found.append(compared_by(make_result(experiment, round=number, ranks=ranks), compare))
    return found


def with_direction(run: Result, better: str) -> Result:
    (rank,) = run.ranks
    metrics = tuple(one.model_copy(update={"better": better}) for one in rank.metrics)
    return run.model_copy(update={"ranks": (rank.model_copy(update={"metrics": metrics}),)})


def summary_of(*runs: Sequence[Result]):
    return make_summary([own[0].experiment for own in runs], [run for own in runs for run in own])


@pytest.mark.parametrize(
    ("better", "factor", "verdict", "word"),
    [
        ("lower", 0.8, "better", "less"),
        ("lower", 1.25, "worse", "less"),
        ("higher", 1.25, "better", "more"),
        ("higher", 0.8, "worse", "more"),
        ("lower", 1.0, "same", "less"),
    ],
)
def test_a_metric_that_is_named_is_judged_in_its_direction(better, factor, verdict, word):
    summary = summary_of(rounds("lora", 1.0, better=better), rounds("fast", factor, better=better))
    base, row = summary.experiments
    assert (row.verdict, row.loss_verdict) == (verdict, "bitwise equal")
    times = 1 / factor if better == "lower" else factor
    assert row.ratio.median == pytest.approx(times)
    assert (row.quantity.name, row.quantity.unit) == ("joules_per_token", "J/token")
    assert row.quantity.value.median == pytest.approx(factor * base.quantity.value.median)
    assert "times as good as lora" in conclusion(summary)
    assert f"by joules_per_token ({word} is better)" in conclusion(summary)
    table = render([summary], "table")
    assert ("times as good" in " ".join(table.split())) and (f" {verdict}" in table)
    assert "faster" not in table + conclusion(summary)


def test_without_a_name_the_speed_is_judged_whatever_a_metric_says():
    summary = summary_of(rounds("lora", 1.0, None), rounds("fast", 0.5, None))
    row = summary.experiments[1]
    assert (row.verdict, row.quantity.name) == ("same", "tokens_per_second")
    assert row.quantity.value == row.tokens_per_second
    assert "times as fast" in " ".join(render([summary], "table").split())


def test_a_figure_of_the_run_is_judged_by_its_name():
    runs = [rounds(name, 1.0, "peak_memory_bytes") for name in ("lora", "fast")]
    smaller = [
        run.model_copy(update={"ranks": (make_rank(step_seconds=(0.1, 0.1), peak=800 + n),)})
        for n, run in enumerate(runs[1])
    ]
    row = summary_of(runs[0], smaller).experiments[1]
    assert (row.verdict, row.quantity.unit) == ("better", "bytes per device")
    assert row.ratio.median == pytest.approx(1000 / 802, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "metric", "reason"),
    [
        (
            "joule_per_token",
            {},
            "no completed run has joule_per_token; did you mean 'joules_per_token'?",
        ),
        ("joules_per_token", {"better": "neither"}, "joules_per_token states no better direction"),
        ("first_loss", {}, "first_loss states no better direction"),
        ("joules_per_token", {"unit": "W"}, "joules_per_token has the units J/token and W"),
        (
            "joules_per_token",
            {"better": "higher"},
            "of joules_per_token one calls the lower value better, the other the higher",
        ),
    ],
)
def test_what_cannot_be_judged_says_why_and_gets_no_ratio(name, metric, reason):
    base = metric if metric.get("better") == "neither" else {}
    row = summary_of(rounds("lora", 1.0, name, **base), rounds("fast", 0.5, name, **metric))
    row = row.experiments[1]
    assert (row.ratio, row.verdict, row.verdict_reason) == (None, "not tested", reason)


@pytest.mark.parametrize("value", [0.0, -1.0, None])
def test_a_ratio_needs_a_positive_value_of_every_run(value):
    runs = rounds("fast", 0.5)
    (rank,) = runs[2].ranks
    broken = rank.model_copy(update={"metrics": (energy(value),)})
    runs[2] = runs[2].model_copy(update={"ranks": (broken,)})
    row = summary_of(rounds("lora", 1.0), runs).experiments[1]
    if value is None:
        assert (row.rounds, row.verdict) == (4, "not tested")
    else:
        assert "is not positive in every run" in row.verdict_reason
        assert (row.ratio, row.quantity.value) == (None, None)


def test_of_two_plugins_that_report_one_name_the_plugin_must_be_named():
    def doubled(runs):
        other = energy(1.0, plugin="other")
        ranks = [run.ranks[0] for run in runs]
        return [
            run.model_copy(
                update={"ranks": (rank.model_copy(update={"metrics": (*rank.metrics, other)}),)}
            )
            for run, rank in zip(runs, ranks, strict=True)
        ]

    row = summary_of(doubled(rounds("lora", 1.0)), doubled(rounds("fast", 0.5))).experiments[1]
    assert row.verdict_reason == (
        "joules_per_token is meter.joules_per_token and other.joules_per_token: name one of them"
    )
    name = "meter.joules_per_token"
    both = doubled(rounds("lora", 1.0, name)), doubled(rounds("fast", 0.5, name))
    assert summary_of(*both).experiments[1].verdict == "better"


@pytest.mark.parametrize(
    ("name", "kinds", "answer"),
    [
        ("joules_per_token", ["nvml"], "better"),
        ("meter.joules_per_token", ["nvml"], "better"),
        ("joules_per_token nvml", ["nvml", "rapl"], "better"),
        (
            "joules_per_token",
            ["nvml", "rapl"],
            "joules_per_token is meter.joules_per_token nvml and meter.joules_per_token rapl: "
            "name one of them",
        ),
    ],
)
def test_the_kind_of_a_measurement_is_named_only_where_there_are_several(name, kinds, answer):
    def measured(run: Result) -> Result:
        (rank,) = run.ranks
        *others, one = rank.metrics
        kept = (*others, *(one.model_copy(update={"kind": kind}) for kind in kinds))
        return run.model_copy(update={"ranks": (rank.model_copy(update={"metrics": kept}),)})

    both = (map(measured, rounds(*one, name)) for one in (("lora", 1.0), ("fast", 0.5)))
    row = summary_of(*map(list, both)).experiments[1]
    assert (row.verdict_reason or row.verdict) == answer


def test_two_kinds_of_one_measurement_are_not_compared():
    base, fast = (
        rounds(stack, 1.0, kind=kind) for stack, kind in (("lora", "nvml"), ("fast", "rapl"))
    )
    row = summary_of(base, fast).experiments[1]
    assert row.verdict_reason == (
        "one is compared by joules_per_token nvml, the other one by joules_per_token rapl "
        "(measure.compare)"
    )


def test_an_answer_that_is_open_says_by_what():
    both = [rounds(name, factor)[:2] for name, factor in (("lora", 1.0), ("fast", 0.9))]
    few = make_summary([own[0].experiment for own in both], [*both[0], *both[1]], rounds=2)
    assert "times as good, by joules_per_token (less is better))" in conclusion(few)


@pytest.mark.parametrize(
    ("name", "times", "by"),
    [
        ("steps_per_second", "times as fast", "by steps_per_second (more is better)"),
        ("median_step_seconds", "times as fast", "by median_step_seconds (less is better)"),
        ("mfu", "times as good", "by mfu (more is better)"),
        ("tokens_per_second", "times as fast", ""),
        (MEDIAN_LATENCY, "times as fast", "by the latency of the median request"),
    ],
)
def test_all_but_the_usual_speed_is_named_behind_its_ratio(name, times, by):
    """A stack may take other steps, or count other FLOPs: no speed of tokens follows from them."""
    quantity = Quantity(name=name, unit="", better=QUANTITIES[name][1])
    assert (quantity.words.times, quantity.by.removeprefix(", ")) == (times, by)


def test_a_speed_that_is_named_has_its_column():
    runs = [rounds(name, 1.0, "median_step_seconds") for name in ("lora", "fast")]
    assert "median_step" in render([summary_of(*runs)], "table")


def test_a_stack_that_failed_leaves_the_column_its_name_and_unit():
    runs = [rounds(name, 1.0, kind="nvml") for name in ("lora", "fast")]
    failed = make_failures(rounds("nf4", 1.0)[0].experiment, Status.FAILED)
    shown = [column.header for column in stack_columns(summary_of(*runs, failed))]
    assert [name for name in shown if "joules" in name] == ["joules_per_token nvml"]


def test_the_worst_rank_counts():
    experiment = make_experiment("lora", scenario={"resources": {"devices": 2}})
    ranks = [make_rank(number) for number in (0, 1)]
    ranks = [
        rank.model_copy(update={"metrics": (energy(value),)})
        for rank, value in zip(ranks, (2.0, 3.0), strict=True)
    ]
    summary = summary_of([compared_by(make_result(experiment, ranks=ranks), "joules_per_token")])
    assert summary.experiments[0].quantity.value.median == pytest.approx(3.0)


def test_stored_runs_are_compared_by_what_is_asked_now():
    a, b = rounds("lora", 1.0, None), rounds("fast", 0.5, None)
    assert compare_stored(a, b).verdict == "same"
    found = compare_stored(a, b, "joules_per_token")
    assert (found.verdict, found.b.quantity.name) == ("better", "joules_per_token")


def test_stacks_of_two_quantities_are_not_compared():
    row = summary_of(rounds("lora", 1.0), rounds("fast", 1.0, None)).experiments[1]
    assert row.verdict_reason == (
        "one is compared by joules_per_token, the other one by tokens_per_second (measure.compare)"
    )


@pytest.mark.box
def test_a_race_and_a_gate_judge_the_same_quantity():
    """The stacks are equally fast: only their energy tells them apart."""
    twice = [
        run.model_copy(update={"round": run.round + later, "run_id": f"{run.run_id}-{later}"})
        for later in (0, 5)
        for factor, stack in ((1.0, "lora"), (0.5, "fast"), (0.8, "nf4"))
        for run in rounds(stack, factor)
    ]
    plans = [
        PlannedSummary(experiment=one)
        for one in {run.experiment.stack.name: run.experiment for run in twice}.values()
    ]
    _, raced = collect_raced(plans, twice, "lora", 10)
    assert [(drop.stack, drop.rival, drop.rounds) for drop in raced.drops] == [("nf4", "fast", 5)]
    assert raced.drops[0].reason.endswith("), by joules_per_token (less is better)")
    aimless = [with_direction(run, "neither") for run in twice]
    assert not collect_raced(plans, aimless, "lora", 10)[1].drops
    summary = summary_of(rounds("lora", 1.0), rounds("fast", 2.0))
    outcome, reason = judge_row(summary.experiments[1], "lora", 0.01)
    assert (outcome, "fast is worse than lora by more than 1 %" in reason) == ("regression", True)

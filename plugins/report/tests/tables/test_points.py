"""Sweep points compared with one another: paired where rounds are shared, unpaired else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from accel_bench_report.sweep import NAME
from accel_bench_report.tables.points import PointFigure
from analysis_factory import STEADY, make_experiment, make_ranks, make_result, make_rounds, scaled
from serving_factory import serving

from accel_bench.analysis.aggregate import PlannedSummary
from accel_bench.analysis.schema import Summary
from accel_bench.analysis.summary import summarize
from accel_bench.result import Node, Result, Status
from accel_bench.scenario.experiment import Experiment


def point(size: int, stack: str = "lora") -> Experiment:
    """A stack at one micro batch size."""
    made = make_experiment(stack, sweep={"train.micro_batch_size": size})
    return made.model_copy(update={"tag": f"bs_{size}"})


def summary(experiments: list[Experiment], results: list[Result], reference: str = "") -> Summary:
    """A summary with the baseline `lora`."""
    planned = [PlannedSummary(experiment=one) for one in experiments]
    return summarize("peft", "lora", planned, results, 5, reference=reference)


def later(results: list[Result]) -> list[Result]:
    """The same runs, hours later."""
    return [
        run.model_copy(update={"started_at": run.started_at.replace("T00", "T09")})
        for run in results
    ]


def points_of(summary: Summary) -> tuple[PointFigure, ...]:
    """The sweep points of a comparison's section."""
    found: tuple[PointFigure, ...] = summary.sections[NAME].points
    return found


def row(figures: Any, size: int) -> PointFigure:
    """The figure of a micro batch size."""
    (found,) = [one for one in figures if one.sweep["train.micro_batch_size"] == size]
    return found


ONE, FOUR = point(1), point(4)


def test_a_point_is_compared_with_the_first_and_with_the_one_that_is_named() -> None:
    runs = [*make_rounds(ONE, STEADY), *make_rounds(FOUR, scaled(0.5))]
    first = row(points_of(summary([ONE, FOUR], runs)), 4)
    assert first.ratio is not None and first.ratio.median == pytest.approx(2.0, rel=1e-3)
    assert (first.paired, first.rounds) == (True, 5)
    assert first.reference == {"train.micro_batch_size": 1}
    named = row(points_of(summary([ONE, FOUR], runs, reference="bs_4")), 1)
    assert named.ratio is not None and named.ratio.median == pytest.approx(0.5, rel=1e-3)
    assert (
        row(points_of(summary([ONE, FOUR], runs)), 1).verdict_reason
        == "this is the reference point"
    )


def test_points_that_ran_one_after_another_are_compared_unpaired() -> None:
    drift = [0.1, 0.11, 0.12, 0.13, 0.14]
    halves = [value / 2 for value in drift]
    together = summary([ONE, FOUR], [*make_rounds(ONE, drift), *make_rounds(FOUR, halves)])
    apart = summary([ONE, FOUR], [*make_rounds(ONE, drift), *later(make_rounds(FOUR, halves))])
    paired, unpaired = row(points_of(together), 4), row(points_of(apart), 4)
    assert (paired.paired, unpaired.paired) == (True, False)
    assert paired.ratio is not None and paired.ratio.low == pytest.approx(2.0)
    assert unpaired.ratio is not None and unpaired.ratio.low is not None
    assert unpaired.ratio.median == pytest.approx(2.0) and unpaired.ratio.low < 1.8


def test_points_that_ran_at_the_same_time_are_compared_unpaired() -> None:
    def begun_at(seconds: int) -> list[Result]:
        runs = make_rounds(FOUR, scaled(0.5))
        at = f":{seconds:02}Z"
        began = [run.started_at.replace(":00Z", at) for run in runs]
        changes = [{"started_at": one, "seconds": 20.0} for one in began]
        return [run.model_copy(update=one) for run, one in zip(runs, changes, strict=True)]

    first = [run.model_copy(update={"seconds": 20.0}) for run in make_rounds(ONE, STEADY)]
    apart = summary([ONE, FOUR], [*first, *begun_at(30)])
    at_once = summary([ONE, FOUR], [*first, *begun_at(10)])
    assert [row(points_of(made), 4).paired for made in (apart, at_once)] == [True, False]


def test_points_that_ran_on_other_nodes_are_compared_unpaired() -> None:
    def on(name: str, results: list[Result]) -> list[Result]:
        nodes = (Node(rank=0, name=name, address="192.0.2.1", cores=1, memory_bytes=1),)
        return [run.model_copy(update={"nodes": nodes}) for run in results]

    first, second = make_rounds(ONE, STEADY), make_rounds(FOUR, scaled(0.5))
    together = summary([ONE, FOUR], [*on("a", first), *on("a", second)])
    apart = summary([ONE, FOUR], [*on("a", first), *on("b", second)])
    assert [row(points_of(made), 4).paired for made in (together, apart)] == [True, False]


def test_two_accumulation_plans_against_one_more_node_are_global_and_per_device() -> None:
    plans = []
    for steps, nodes in ((4, 1), (2, 2)):
        work = {"train": {"gradient_accumulation": steps}, "resources": {"nodes": nodes}}
        sweep = {"train.gradient_accumulation": steps, "resources.nodes": nodes}
        plans.append(make_experiment(sweep=sweep, scenario=work))
    runs = [
        make_result(plan, round=number, ranks=make_ranks(plan, seconds))
        for plan, seconds in zip(plans, (0.4, 0.25), strict=True)
        for number in range(5)
    ]
    made = summary(plans, runs)
    figure = points_of(made)[1]
    assert figure.ratio is not None and figure.ratio_per_device is not None
    assert figure.ratio.median == pytest.approx(1.6)
    assert figure.ratio_per_device.median == pytest.approx(0.8)


def test_each_stack_is_compared_with_itself() -> None:
    fast = [point(1, "fast"), point(4, "fast")]
    runs = [*make_rounds(ONE, STEADY), *make_rounds(FOUR, scaled(0.5))]
    runs += [*make_rounds(fast[0], STEADY), *make_rounds(fast[1], scaled(2.0))]
    made = points_of(summary([ONE, fast[0], FOUR, fast[1]], runs))
    ratios = {(one.stack, one.tag): one.ratio and round(one.ratio.median, 2) for one in made}
    assert ratios == {
        ("lora", "bs_1"): None,
        ("lora", "bs_4"): 2.0,
        ("fast", "bs_1"): None,
        ("fast", "bs_4"): 0.5,
    }


def test_what_did_not_complete_has_a_reason_and_no_ratio() -> None:
    failed = [make_result(FOUR, round=n, status=Status.OOM) for n in range(5)]
    made = summary([ONE, FOUR], [*make_rounds(ONE, STEADY), *failed])
    assert (row(points_of(made), 4).ratio, row(points_of(made), 4).verdict_reason) == (
        None,
        "ended as oom",
    )
    against = row(points_of(summary([ONE, FOUR], [*make_rounds(ONE, STEADY), *failed], "bs_4")), 1)
    assert against.verdict_reason == "the reference point ended as oom"


@pytest.mark.parametrize("sweep", [{}, {"train.seed": 1}, {"train.seed": 1, "data.seed": 1}])
def test_without_a_sweep_and_over_seeds_there_is_nothing_to_compare(sweep: dict[str, Any]) -> None:
    points = [make_experiment(sweep={key: n for key in sweep}) for n in (1, 2)]
    runs = [run for one in points for run in make_rounds(one, STEADY)]
    assert NAME not in summary(points, runs).sections


RATES = ((4.0, 100.0), (1.0, 50.0))
"""Requests a second of sweep points, and their milliseconds."""


def served(*stacks: Sequence[Result]) -> Summary:
    """The summary of servers."""
    planned = [PlannedSummary(experiment=runs[0].experiment) for runs in stacks]
    return summarize("served", "base", planned, [run for runs in stacks for run in runs], 5)


def test_sweep_points_may_differ_in_the_rate() -> None:
    rates = [serving("base", ms, rate=rate, sweep={"inference.rate": rate}) for rate, ms in RATES]
    ratio = points_of(served(*rates))[1].ratio
    assert ratio is not None and ratio.median == pytest.approx(2.0)


def test_sweep_points_are_compared_by_latency_and_those_that_are_saturated_are_not() -> None:
    def point(batch: int, ms: float, seconds: float, **more: Any) -> list[Result]:
        sweep = {"inference.batch_size": batch}
        return serving("base", ms, seconds=seconds, sweep=sweep, inference=batches(batch), **more)

    def batches(size: int) -> dict[str, Any]:
        return {"batch_size": size}

    stacks = [point(1, 100, 0.1), point(4, 200, 0.05), point(8, 50, 0.02, saturated=True)]
    first, second, third = points_of(served(*stacks))
    assert first.verdict_reason == "this is the reference point"
    assert second.ratio is not None and second.ratio.median == pytest.approx(0.5)
    assert third.ratio is None and third.verdict_reason.startswith(
        "saturated: base (inference.batch_size=8)"
    )

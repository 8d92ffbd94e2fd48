"""A ladder's figures: steps and leave-one-outs from the same pairs, and a reason where there are
none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from accel_bench_ladder.figures import LadderStep
from accel_bench_ladder.section import NAME
from analysis_factory import (
    STEADY,
    make_experiment,
    make_rank,
    make_result,
    make_rounds,
    make_summary,
    scaled,
)
from serving_factory import serving

from accel_bench.analysis.schema import Summary
from accel_bench.result import Result, Status
from accel_bench.scenario.experiment import Experiment
from accel_bench.scenario.models import LadderPosition

ITEMS = ("a", "b")
HOLDS = {"lora": ((),), "1+a": ((0,),), "2+b": ((0, 1),), "without-a": ((1,),)}
"""Sets of items by stack: the baseline of these tests is called `lora`."""


def on_ladder(
    stack: str, holds: Sequence[tuple[int, ...]] | None = None, sweep: Mapping[str, int] = {}
) -> Experiment:
    """A stack with its place."""
    experiment = make_experiment(stack, sweep=sweep)
    place = LadderPosition(items=ITEMS, holds=tuple(holds or HOLDS[stack]))
    return experiment.model_copy(
        update={"stack": experiment.stack.model_copy(update={"ladder": place})}
    )


def climb(**seconds: float) -> Summary:
    """Five rounds of the stacks of a ladder, each that many times as long as the baseline."""
    factors = {"lora": 1.0, "1+a": 0.8, "2+b": 0.4, "without-a": 0.5, **seconds}
    experiments = [on_ladder(name) for name in factors]
    times = {"lora": STEADY, **{n: scaled(f) for n, f in factors.items() if n != "lora"}}
    results = [run for e in experiments for run in make_rounds(e, times[e.stack.name])]
    return make_summary(experiments, results)


def steps_of(summary: Summary) -> tuple[LadderStep, ...]:
    """The steps of a comparison's section."""
    found: tuple[LadderStep, ...] = summary.sections[NAME]
    return found


def median(step: LadderStep, figure: str) -> float:
    """The ratio of one of a step's figures."""
    found = getattr(step, figure).ratio
    assert found is not None
    return float(found.median)


def test_each_item_has_what_it_adds_and_what_leaving_it_out_costs() -> None:
    first, second = steps_of(climb())
    assert (first.item, first.number, second.item, second.number) == ("a", 1, "b", 2)
    assert (median(first, "adds"), median(second, "adds")) == pytest.approx((1.25, 2.0), rel=1e-3)
    # Without a: 0.4 / 0.5 of the speed of all; without b, which is the rung before: 0.4 / 0.8.
    left_out = median(first, "left_out"), median(second, "left_out")
    assert left_out == pytest.approx((0.8, 0.5), rel=1e-3)
    assert (second.adds.stack, second.adds.against) == ("2+b", "1+a")
    assert (first.left_out.stack, first.left_out.against) == ("without-a", "2+b")
    assert (second.left_out.stack, second.left_out.against) == ("1+a", "2+b")


def test_steps_are_estimates_over_the_same_pairs_with_intervals() -> None:
    summary = climb()
    step = steps_of(summary)[1]
    assert (step.adds.rounds, step.adds.loss_verdict) == (5, "bitwise equal")
    assert step.adds.ratio is not None
    assert step.adds.ratio.low is not None
    assert step.adds.ratio.low < 2.0 < (step.adds.ratio.high or 0)
    assert step.ratio == summary.experiments[2].ratio


def test_a_ladder_changes_no_verdict_of_its_stacks() -> None:
    plain = [make_experiment(name) for name in HOLDS]
    times = {"lora": STEADY, "1+a": scaled(0.8), "2+b": scaled(0.4), "without-a": scaled(0.5)}
    results = [run for e in plain for run in make_rounds(e, times[e.stack.name])]
    without, with_ladder = make_summary(plain, results), climb()
    assert NAME not in without.sections
    assert [(r.verdict, r.ratio) for r in without.experiments] == [
        (r.verdict, r.ratio) for r in with_ladder.experiments
    ]


def test_memory_is_the_paired_difference_with_an_interval() -> None:
    peaks = {"lora": [1000, 1010, 990], "1+a": [700, 715, 685]}
    experiments = [on_ladder("lora"), on_ladder("1+a")]
    results = [
        make_result(e, round=i, ranks=[make_rank(peak=peak)])
        for e in experiments
        for i, peak in enumerate(peaks[e.stack.name])
    ]
    memory = steps_of(make_summary(experiments, results, rounds=3))[0].adds.memory
    assert memory is not None
    assert memory.bytes == -300
    # Differences -300, -295, -305: standard error 5 / sqrt(3), t(2, 0.975) = 4.303.
    assert memory.high == pytest.approx(-300 + 4.3027 * 5 / 3**0.5, rel=1e-4)
    assert memory.low == pytest.approx(-300 - 4.3027 * 5 / 3**0.5, rel=1e-4)


def test_memory_that_was_not_measured_is_null() -> None:
    experiments = [on_ladder("lora"), on_ladder("1+a")]
    results = [make_result(e, ranks=[make_rank(peak=None)]) for e in experiments]
    assert steps_of(make_summary(experiments, results, rounds=1))[0].adds.memory is None


def test_the_item_that_changes_the_loss_is_marked_and_the_next_one_is_not() -> None:
    experiments = [on_ladder(name) for name in HOLDS]
    ends = {"lora": 1.8, "1+a": 1.6, "2+b": 1.6, "without-a": 1.8}
    results = [
        make_result(
            e,
            round=i,
            ranks=[make_rank(losses=[2.0, (2.0 + ends[e.stack.name]) / 2, ends[e.stack.name]])],
        )
        for e in experiments
        for i in range(2)
    ]
    first, second = steps_of(make_summary(experiments, results, rounds=2))
    assert (first.adds.loss_verdict, first.left_out.loss_verdict) == ("different", "different")
    assert (second.adds.loss_verdict, second.left_out.loss_verdict) == ("bitwise equal",) * 2


def test_leaving_an_item_out_is_judged_by_what_the_stack_with_it_allows() -> None:
    experiments = [on_ladder(name) for name in HOLDS]
    results = [
        make_result(e, loss_tolerance=0.5 if e.stack.name == "2+b" else 1e-6) for e in experiments
    ]
    step = steps_of(make_summary(experiments, results, rounds=1))[0]
    assert step.left_out.loss_tolerance == 0.5


def test_a_rung_that_failed_leaves_its_neighbours_without_a_figure_and_says_so() -> None:
    experiments = [on_ladder(name) for name in HOLDS]
    results = [
        run
        for e in experiments
        for run in (
            [make_result(e, status=Status.OOM)]
            if e.stack.name == "1+a"
            else make_rounds(e, STEADY[:1])
        )
    ]
    first, second = steps_of(make_summary(experiments, results, rounds=1))
    assert (first.adds.ratio, first.adds.verdict_reason) == (None, "1+a ended as oom")
    assert (second.adds.ratio, second.adds.verdict_reason) == (None, "1+a ended as oom")
    assert first.left_out.ratio is not None
    assert (first.ratio, second.ratio is not None) == (None, True)


def test_a_skipped_rung_says_that_it_was_skipped() -> None:
    experiments = [on_ladder("lora"), on_ladder("1+a")]
    results = make_rounds(experiments[0], STEADY)
    summary = make_summary(experiments, results, skipped={"1+a": ["needs a GPU"]})
    assert steps_of(summary)[0].adds.verdict_reason == "1+a was skipped"


def test_a_stack_that_is_not_in_the_plan_has_no_name_and_no_figure() -> None:
    experiments = [on_ladder("lora"), on_ladder("2+b")]
    results = [run for e in experiments for run in make_rounds(e, STEADY)]
    first, second = steps_of(make_summary(experiments, results))
    assert (first.adds.stack, first.adds.against) == (None, "lora")
    assert "not in the plan" in first.adds.verdict_reason
    assert second.ratio is not None


def test_an_item_that_another_one_implies_is_not_missed() -> None:
    experiments = [on_ladder("lora"), on_ladder("1+a"), on_ladder("2+b", [(0, 1), (1,)])]
    results = [run for e in experiments for run in make_rounds(e, STEADY)]
    step = steps_of(make_summary(experiments, results))[0]
    assert "changes nothing" in step.left_out.verdict_reason


def test_rounds_of_different_sessions_are_no_pairs_of_neighbours() -> None:
    experiments = [on_ladder("lora"), on_ladder("1+a")]
    results = [
        *make_rounds(experiments[0], STEADY),
        *make_rounds(experiments[1], STEADY, session="tuesday"),
    ]
    reason = steps_of(make_summary(experiments, results))[0].adds.verdict_reason
    assert reason == "no round in which both completed"


def test_each_sweep_point_has_a_ladder_of_its_own() -> None:
    experiments = [on_ladder(name, sweep={"x": n}) for n in (1, 2) for name in ("lora", "1+a")]
    factor = {("1+a", 1): 0.5, ("1+a", 2): 0.25}
    results = [
        run
        for e in experiments
        for run in make_rounds(e, scaled(factor.get((e.stack.name, e.sweep["x"]), 1.0)))
    ]
    steps = [step for step in steps_of(make_summary(experiments, results)) if step.item == "a"]
    assert [step.sweep["x"] for step in steps] == [1, 2]
    assert [median(step, "adds") for step in steps] == pytest.approx([2.0, 4.0], rel=1e-3)


def test_an_item_that_is_asked_for_fewer_requests_has_no_ratio_on_its_ladder() -> None:
    def placed(run: Result, *holds: tuple[int, ...]) -> Result:
        place = LadderPosition(items=("calm",), holds=holds)
        stack = run.experiment.stack.model_copy(update={"ladder": place})
        experiment = run.experiment.model_copy(update={"stack": stack})
        return run.model_copy(update={"experiment": experiment})

    runs = [placed(run, ()) for run in serving("base", 100)]
    runs += [placed(run, (0,)) for run in serving("calm", 50, rate=1.0, declares=True)]
    plans = {run.experiment.id: run.experiment for run in runs}
    (step,) = steps_of(make_summary([*plans.values()], runs, baseline="base"))
    reason = "requests arrive at 4 and at 1 a second"
    assert (step.adds.ratio, step.adds.verdict_reason, step.left_out.ratio) == (None, reason, None)

"""The gate's report: outcome, reason, and the deciding sweep point."""

from __future__ import annotations

import pytest
from accel_bench_ci.verdict import judge_gate
from analysis_factory import (
    FAST,
    LORA,
    STEADY,
    make_experiment,
    make_rank,
    make_result,
    make_rounds,
    scaled,
    with_threads,
)

from accel_bench.analysis.aggregate import PlannedSummary
from accel_bench.result import Status


def judged(*results, floor=0.01, planned=(LORA, FAST), skipped=()):
    plans = [
        PlannedSummary(experiment=e, skipped=("excluded: too big",) if e in skipped else ())
        for e in planned
    ]
    return judge_gate("fast", "lora", floor, plans, [run for group in results for run in group])


def at(size, stack):
    return make_experiment(stack, sweep={"train.micro_batch_size": size})


def test_a_slower_stack_is_a_regression_with_its_figures():
    report = judged(make_rounds(LORA, STEADY), make_rounds(FAST, scaled(1.05)))
    (point,) = report.points
    assert (report.outcome, report.exit_code) == ("regression", 4)
    assert (point.stack_id, point.against_id) == (FAST.id, LORA.id)
    assert (point.rounds, point.looks, point.loss_verdict) == (5, 1, "bitwise equal")
    assert 0.049 < point.slower_by < 0.051
    assert point.slower_by < point.slower_by_at_most < 0.06
    assert "fast is slower than lora by more than 1 %: 0.952 times as fast" in point.reason


def test_the_floor_decides_what_passes():
    report = judged(make_rounds(LORA, STEADY), make_rounds(FAST, scaled(1.05)), floor=0.1)
    assert (report.outcome, report.exit_code) == ("passed", 0)
    assert report.points[0].reason.startswith("fast is not slower than lora by more than 10 %")


def test_a_different_loss_does_not_pass_however_fast():
    ranks = [make_rank(step_seconds=(0.05, 0.05), losses=[2.0, 2.1, 2.2])]
    unlike = [make_result(FAST, round=i, ranks=ranks) for i in range(5)]
    report = judged(make_rounds(LORA, STEADY), unlike)
    assert report.exit_code == 4
    assert report.points[0].loss_verdict == "different"
    assert report.points[0].reason.startswith(
        "the training of fast is different (its loss differs by up to 5.53 %"
    )


def test_a_loss_that_is_different_by_design_does_not_pass_as_equal():
    ranks = [make_rank(step_seconds=(0.05, 0.05), losses=[2.0, 2.04, 2.0])]
    unlike = [make_result(FAST, round=i, ranks=ranks, loss_tolerance=0.5) for i in range(5)]
    report = judged(make_rounds(LORA, STEADY), unlike)
    assert report.exit_code == 4
    assert report.points[0].reason.startswith(
        "the training of fast is different by design (its loss differs by"
    )


def test_what_a_plugin_was_allowed_stands_beside_the_passed_loss():
    ranks = [make_rank(step_seconds=(0.08, 0.08), losses=[2.0, 1.9902, 1.9801])]
    runs = [make_result(FAST, round=i, ranks=ranks, loss_tolerance=2e-2) for i in range(5)]
    report = judged(make_rounds(LORA, STEADY), runs)
    assert report.outcome == "passed"
    assert report.points[0].loss_tolerance == 2e-2
    assert (
        "loss equivalent (by up to 0.00503 %, 2 % allowed by a plugin)" in report.points[0].reason
    )


def test_a_loss_that_cannot_tell_passes_with_the_words_said():
    still = [2.0, 1.9999, 1.9998]
    base, fast = (
        [
            make_result(e, round=i, ranks=[make_rank(step_seconds=(s, s), losses=still)])
            for i, s in enumerate(seconds)
        ]
        for e, seconds in ((LORA, STEADY), (FAST, scaled(0.8)))
    )
    report = judged(base, fast)
    (point,) = report.points
    assert (report.outcome, point.loss_verdict) == ("passed", "inconclusive")
    assert point.loss_movement == pytest.approx(1e-4, rel=1e-3)
    assert point.reason.endswith(
        "; loss inconclusive (the loss moved by 0.01 % in all, and 0.1 % is allowed), "
        "update equivalent"
    )


def test_an_open_gate_says_how_many_more_rounds_would_settle_it():
    noisy = [0.1, 0.102, 0.099, 0.101, 0.1005]
    report = judged(make_rounds(LORA, STEADY), make_rounds(FAST, noisy))
    (point,) = report.points
    assert report.exit_code == 5
    assert point.more_rounds == point.rounds_needed - 5 > 0
    assert f"about {point.more_rounds} more rounds would settle it" in point.reason


def test_rounds_of_two_sessions_have_been_looked_at_twice():
    one, two = (
        [*make_rounds(LORA, STEADY[:3], session=day), *make_rounds(FAST, STEADY[:3], session=day)]
        for day in ("monday", "tuesday")
    )
    (point,) = judged(one, two).points
    assert (point.rounds, point.looks) == (6, 2)


def test_one_run_that_did_not_complete_is_enough_to_fail():
    fast = make_rounds(FAST, scaled(0.8))
    fast[2] = make_result(FAST, round=2, status=Status.CRASHED, reasons=["SIGSEGV"])
    report = judged(make_rounds(LORA, STEADY), fast)
    assert (report.outcome, report.exit_code) == ("failed", 1)
    assert report.points[0].reason == "a run of fast ended as crashed: SIGSEGV"


def test_a_run_that_was_repeated_after_it_was_lost_does_not_fail_the_gate():
    fast = make_rounds(FAST, scaled(1.0))
    fast.insert(0, make_result(FAST, round=0, status=Status.KILLED))
    fast[1] = make_result(FAST, round=0, attempt=1, seconds=0.1)
    assert judged(make_rounds(LORA, STEADY), fast).outcome == "passed"


def test_a_stack_that_never_ran_fails():
    report = judged(make_rounds(LORA, STEADY))
    assert report.exit_code == 1
    assert "it was planned and never run" in report.points[0].reason


def test_the_worst_of_several_sweep_points_counts():
    good = [*make_rounds(at(1, "lora"), STEADY), *make_rounds(at(1, "fast"), scaled(1.0))]
    bad = [*make_rounds(at(2, "lora"), STEADY), *make_rounds(at(2, "fast"), scaled(1.2))]
    planned = [at(1, "lora"), at(1, "fast"), at(2, "lora"), at(2, "fast")]
    report = judged(good, bad, planned=planned)
    assert [point.outcome for point in report.points] == ["passed", "regression"]
    assert report.outcome == "regression"
    assert "fast (train.micro_batch_size=2) is slower" in report.points[1].reason


def test_a_sweep_point_that_is_skipped_spoils_nothing():
    good = [*make_rounds(at(1, "lora"), STEADY), *make_rounds(at(1, "fast"), scaled(1.0))]
    planned = [at(1, "lora"), at(1, "fast"), at(2, "lora"), at(2, "fast")]
    report = judged(good, planned=planned, skipped=[at(2, "fast")])
    assert [point.outcome for point in report.points] == ["passed", "skipped"]
    assert (report.outcome, report.points[1].reason) == ("passed", "excluded: too big")


def test_a_stack_under_other_conditions_does_not_pass():
    fast = with_threads(make_rounds(FAST, scaled(0.8)), 2)
    report = judged(make_rounds(LORA, STEADY), fast)
    assert (report.outcome, report.exit_code) == ("failed", 1)
    assert report.points[0].reason == (
        "fast and lora are not comparable: effective.threads (2 in the place of 4) differ without "
        "being declared"
    )


def test_an_operation_passes_by_its_speed_alone_since_nothing_is_trained():
    """Losses of operations are constant; each run checks its own results."""
    task = {"use": "null", "counts": "calls"}
    eager, fast = (make_experiment(name, scenario={"task": task}) for name in "ab")
    ranks = [make_rank(step_seconds=(0.08, 0.08), losses=[0.0, 9.0, 0.0])]
    runs = [make_rounds(eager, STEADY), [make_result(fast, round=i, ranks=ranks) for i in range(5)]]
    plans = [PlannedSummary(experiment=one) for one in (eager, fast)]
    report = judge_gate("b", "a", 0.01, plans, [run for group in runs for run in group])
    assert (report.outcome, report.exit_code) == ("passed", 0)
    assert "loss not tested (nothing is trained: one operation is called" in report.points[0].reason

"""A slow-down of the gate counts when new rounds confirm it on their own."""

from __future__ import annotations

from accel_bench_ci.looks import (
    ERROR_RATE,
    points_to_confirm,
    with_confirmation,
)
from accel_bench_ci.verdict import judge_gate
from analysis_factory import FAST, LORA, STEADY, make_failures, make_rounds, scaled

from accel_bench.analysis.aggregate import PlannedSummary
from accel_bench.result import Status

PLANNED = [PlannedSummary(experiment=one) for one in (LORA, FAST)]
ALARM = judge_gate(
    "fast",
    "lora",
    0.01,
    PLANNED,
    [*make_rounds(LORA, STEADY), *make_rounds(FAST, scaled(1.05))],
)


def confirmed_by(*fresh):
    """The report after new rounds of both."""
    baseline = make_rounds(LORA, STEADY, session="tuesday")
    return with_confirmation(ALARM, PLANNED, [*baseline, *(run for one in fresh for run in one)])


def test_new_rounds_that_are_slower_too_confirm_it_at_a_stated_rate():
    assert points_to_confirm(ALARM) == {FAST.id}
    report = confirmed_by(make_rounds(FAST, scaled(1.04), session="tuesday"))
    (point,) = report.points
    assert (report.outcome, report.exit_code, point.confirmed) == ("regression", 4, True)
    assert (point.confirmation_rounds, point.error_rate) == (5, ERROR_RATE)
    assert 0.95 < point.confirmation_ratio.median < 0.97
    assert "confirmed by 5 new rounds in fresh processes: 0.96" in point.reason
    assert ERROR_RATE == 0.005
    assert point.reason.endswith("error rate at most 0.5 % by the new rounds alone")


def test_new_rounds_that_are_as_fast_let_it_pass():
    report = confirmed_by(make_rounds(FAST, scaled(1.0), session="tuesday"))
    (point,) = report.points
    assert (report.outcome, report.exit_code, point.confirmed) == ("passed", 0, False)
    assert point.error_rate is None
    assert point.reason.startswith("not confirmed by 5 new rounds in fresh processes: 1.0")
    assert "the first rounds had it that fast is slower than lora by more than 1 %" in point.reason


def test_new_rounds_that_scatter_leave_it_open():
    wild = [seconds * factor for seconds, factor in zip(STEADY, (1, 1.4, 0.8, 1.5, 1), strict=True)]
    report = confirmed_by(make_rounds(FAST, wild, session="tuesday"))
    assert (report.outcome, report.exit_code) == ("inconclusive", 5)
    assert report.points[0].more_rounds


def test_new_runs_that_fail_are_a_failure():
    report = confirmed_by(make_failures(FAST, Status.OOM, session="tuesday"))
    assert (report.outcome, report.exit_code, report.points[0].confirmed) == ("failed", 1, False)


def test_a_different_loss_needs_no_second_time():
    changed = make_rounds(FAST, scaled(1.0))
    runs = [
        run.model_copy(
            update={
                "ranks": tuple(
                    rank.model_copy(
                        update={
                            "window": rank.window.model_copy(
                                update={
                                    "samples": tuple(
                                        one.model_copy(update={"loss": 9.0})
                                        for one in rank.window.samples
                                    )
                                }
                            )
                        }
                    )
                    for rank in run.ranks
                )
            }
        )
        for run in changed
    ]
    report = judge_gate("fast", "lora", 0.01, PLANNED, [*make_rounds(LORA, STEADY), *runs])
    assert report.outcome == "regression"
    assert points_to_confirm(report) == set()

"""From attempts to one status, one rule at a time."""

from __future__ import annotations

import pytest
from analysis_factory import (
    FAST,
    LORA,
    STEADY,
    make_experiment,
    make_result,
    make_rounds,
    make_summary,
)

from accel_bench.analysis.aggregate import PlannedSummary, counted_runs, ending
from accel_bench.analysis.summary import exit_code
from accel_bench.result import Status

PLAN = PlannedSummary(experiment=make_experiment())


def end(*statuses, rounds=None):
    runs = [make_result(round=i, status=Status(status)) for i, status in enumerate(statuses)]
    return ending(PLAN, runs, len(statuses) if rounds is None else rounds)


def test_only_the_last_attempt_of_a_run_counts():
    attempts = [
        make_result(round=0, attempt=1),
        make_result(round=0, attempt=0, status=Status.CRASHED),
    ]
    assert [run.attempt for run in counted_runs(attempts).values()] == [1]


def test_a_failed_round_that_a_later_session_repeated_does_not_count():
    first = [make_result(round=0), make_result(round=1, status=Status.KILLED)]
    second = [make_result(round=1, session="tuesday")]
    assert list(counted_runs(second + first)) == [("monday", 0), ("tuesday", 1)]


def test_a_completed_round_counts_in_every_session():
    runs = [make_result(round=0, session=session) for session in ("tuesday", "monday")]
    assert list(counted_runs(runs)) == [("monday", 0), ("tuesday", 0)]


def test_a_failure_that_no_session_repaired_counts():
    runs = [make_result(round=0, status=Status.KILLED, session="tuesday"), make_result(round=0)]
    assert len(counted_runs(runs)) == 2


def test_all_ok_is_ok_without_reasons():
    assert end("ok", "ok") == (Status.OK, ())


def test_one_degraded_run_degrades_the_experiment():
    assert end("ok", "degraded").status is Status.DEGRADED


def test_half_completed_is_degraded_and_says_how_many():
    found = end("ok", "oom", "ok", "killed")
    assert found.status is Status.DEGRADED
    assert found.reasons == ("2 of 4 runs completed: oom 1, killed 1",)


def test_less_than_half_completed_is_the_commonest_failure():
    assert end("ok", "oom", "oom", "killed", "oom").status is Status.OOM


def test_the_first_of_equally_common_failures_names_the_status():
    assert end("hung", "oom", "oom", "hung").status is Status.HUNG


def test_one_invalid_run_makes_everything_invalid():
    assert end("ok", "ok", "ok", "invalid").status is Status.INVALID


def test_rounds_that_never_came_degrade_or_interrupt():
    assert end("ok", "ok", "ok", rounds=5).status is Status.DEGRADED
    assert end("ok", "ok", rounds=5).status is Status.INTERRUPTED


def test_more_rounds_than_asked_for_are_welcome():
    assert end("ok", "ok", "ok", rounds=2).status is Status.OK


def test_reasons_are_said_once():
    runs = [make_result(round=i, status=Status.DEGRADED, reasons=["busy"]) for i in range(3)]
    assert ending(PLAN, runs, 3).reasons == ("busy",)


def test_a_constraint_skips_with_its_reasons():
    plan = PLAN.model_copy(update={"skipped": ("needs a GPU",)})
    assert ending(plan, [], 5) == (Status.SKIPPED, ("needs a GPU",))


def test_an_experiment_that_was_never_reached_is_interrupted():
    assert ending(PLAN, [], 5).status is Status.INTERRUPTED


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (["ok", "ok"], 0),
        (["ok", "degraded"], 0),
        (["ok", "oom"], 1),
        (["ok", "invalid"], 1),
        (["ok", None], 0),
        (["oom", None], 1),
        ([None, None], 3),
    ],
)
def test_the_exit_code_tells_success_from_failure_from_nothing_done(statuses, code):
    results, skipped = [], {}
    for experiment, status in zip((LORA, FAST), statuses, strict=True):
        if status is None:
            skipped[experiment.stack.name] = ["needs a GPU"]
        else:
            results.append(make_result(experiment, status=Status(status)))
    summary = make_summary([LORA, FAST], results, rounds=1, skipped=skipped)
    assert exit_code([summary]) == code


def test_a_skipped_scenario_beside_one_that_ran_is_no_failure():
    ran = make_summary([LORA], make_rounds(LORA, STEADY))
    skipped = make_summary([LORA], [], skipped={"lora": ["needs a GPU"]})
    assert exit_code([ran, skipped]) == 0

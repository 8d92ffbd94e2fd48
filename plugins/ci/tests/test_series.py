"""Histories of one scenario: series, points, steps and conclusion."""

from __future__ import annotations

import random

import pytest
from accel_bench_ci.figures import COLUMN_FIGURES, REQUEST_LATENCY, figure_named, figures_of
from accel_bench_ci.series import FEWEST, histories, history_run
from analysis_factory import make_experiment, make_result

from accel_bench.errors import StoreError
from accel_bench.result import Status

DRAW = random.Random(1)
NOISE = [DRAW.gauss(1, 0.004) for _ in range(200)]


def experiment(version="1.0", **changes):
    """An experiment with an id that depends on a library's version."""
    made = make_experiment(**changes)
    environment = {"python": "3.11", "versions": {"torch": version}, "devices": ["a CPU"]}
    identity = {**made.identity, "environment": environment}
    return made.model_copy(update={"identity": identity, "id": f"{made.id}{version}"})


def night(number, seconds, of=None, rounds=2, **changes):
    """The runs of one session."""
    runs = [
        make_result(of or experiment(), round=i, seconds=seconds * NOISE[2 * number + i], **changes)
        for i in range(rounds)
    ]
    stamp = f"2026-{1 + number // 28:02}-{1 + number % 28:02}T01:00"
    return [
        history_run(
            run.model_copy(
                update={
                    "session": f"night-{number:03}",
                    "run_id": f"run-{number:03}-{run.round}",
                    "started_at": f"{stamp}:{run.round:02}Z",
                }
            )
        )
        for run in runs
    ]


def changed(run, **changes):
    """The same run with other fields."""
    return run._replace(result=run.result.model_copy(update=changes))


def nights(count, change=None, at=0, version="1.0"):
    """Sessions, of which those from `at` on take `change` times as long, with a new version."""
    found = []
    for number in range(count):
        slow = change is not None and number >= at
        of = experiment(version if slow else "1.0")
        found += night(number, 0.1 * (change if slow else 1), of)
    return found


def test_a_slow_down_is_a_step_that_names_session_size_and_version():
    (found,) = histories(nights(30, 1.08, at=20, version="1.1"))
    (step,) = found.steps
    assert (step.session, step.change, step.points_since) == ("night-020", "worse", 10)
    assert step.relative_change == pytest.approx(1 / 1.08 - 1, abs=0.01)
    assert [(d.key, d.a, d.b) for d in step.differing] == [("torch", "1.0", "1.1")]
    assert found.conclusion.startswith("tokens_per_second of lora: 7.")
    assert found.conclusion.endswith(
        "less, worse since session night-020 of 2026-01-21 (10 sessions; changed there: torch 1.0 "
        "to 1.1)"
    )


def test_without_a_step_the_sentence_says_so():
    (found,) = histories(nights(30))
    assert found.steps == ()
    assert found.conclusion == "tokens_per_second of lora: no step in 30 sessions"
    assert [point.runs for point in found.points] == [2] * 30


def test_few_sessions_are_not_searched():
    (found,) = histories(nights(FEWEST - 1, 2.0, at=5))
    assert found.steps == ()
    assert "13 of the 14 sessions that a search for steps needs" in found.conclusion


def test_another_work_stack_or_point_is_another_series():
    runs = [
        *nights(2),
        *night(3, 0.1, experiment(stack="fast")),
        *night(4, 0.1, experiment(sweep={"train.seed": 2})),
        *night(5, 0.1, experiment(scenario={"train": {"micro_batch_size": 2}})),
    ]
    assert [len(one.points) for one in histories(runs)] == [2, 1, 1, 1]


def test_what_failed_is_a_point_without_a_value_and_what_is_invalid_spoils_its_session():
    failed = night(30, 0.1, status=Status.FAILED)
    spoilt = night(31, 0.1)
    spoilt[1] = changed(spoilt[1], status=Status.INVALID)._replace(value=None)
    (found,) = histories([*nights(30), *failed, *spoilt])
    assert [point.value for point in found.points[-2:]] == [None, None]
    assert [point.statuses for point in found.points[-2:]] == [("failed",), ("ok", "invalid")]
    assert found.conclusion.endswith("no step in 30 sessions")


def test_of_attempts_the_last_counts_and_a_round_measured_again_replaces_the_first():
    again = night(1, 0.1)
    tried = [again[0]._replace(value=1.0), changed(again[0], attempt=1), again[1]]
    (found,) = histories([*night(0, 0.1), *tried])
    assert found.points[1].values == (again[0].value, again[1].value)
    repeated = changed(again[0], replaces="night-000", session="night-001", round=0)
    (found,) = histories([*night(0, 0.1), repeated, again[1]])
    assert [point.runs for point in found.points] == [1, 2]


def test_looks_of_a_gate_are_one_point():
    look = [changed(run, session="night-001.2") for run in night(1, 0.1)]
    (found,) = histories([*night(1, 0.1), *look])
    assert len(found.points) == 1


def test_an_imported_run_has_no_figures_and_an_unknown_figure_is_an_error():
    result = make_result()
    assert set(figures_of(result)) >= {*COLUMN_FIGURES} - {
        "mfu",
        REQUEST_LATENCY.name,
    }  # no known peak, no request
    origin = result.provenance.model_copy(update={"origin": "imported"})
    assert figures_of(result.model_copy(update={"provenance": origin})) == {}
    with pytest.raises(StoreError, match="did you mean 'tokens_per_second'"):
        figure_named("token_per_second", [result])

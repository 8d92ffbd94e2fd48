"""A run that does not end is ended: its row says so, its stack is kept, and all of it is gone.

One program runs all of them under one short time limit.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from faults.program import Finished, Program, null_scenario, write_scenario

from accel_bench.result import Status

LIMIT_SECONDS = 8.0
"""A sound run takes half a second; a loaded machine may need half of this to start one."""

TWO_RANKS = {"resources.devices": 2, "parallel": "none"}


class Case(NamedTuple):
    """One way not to end, and what the row says."""

    options: dict[str, Any]
    status: str
    reason: str
    ranks: int = 1


CASES = {
    "sleeps": Case({"fault": "sleep"}, "hung", "the run stood still in window after 3 steps"),
    "runs-away": Case({"fault": "runaway_and_sleep"}, "hung", "the run stood still in window"),
    "is-deaf": Case({"fault": "ignore"}, "hung", "the run stood still in window"),
    "is-stopped": Case({"fault": "stop"}, "hung", "the run stood still in window"),
    "is-slow": Case({"fault": "slow", "at_step": 0}, "timeout", "the run was still busy in w"),
    "one-sleeps": Case({"fault": "sleep", "rank": 1}, "hung", "rank 1 stood still", ranks=2),
    "sleeps-in-a-hook": Case(
        {"fault": "sleep", "hook": "load_data"},
        "hung",
        "stood still in load_data of plugin 'faulty' (accel-bench-faulty) after 0",
    ),
}


FOR_RELEASES = {"runs-away", "is-stopped"}
"""Stacks that end as another one does: `sleeps`, `is-deaf`."""

EACH = [
    pytest.param(one, marks=pytest.mark.release if one in FOR_RELEASES else ()) for one in CASES
]
"""All cases, as parameters."""


@pytest.fixture(scope="module")
def cases(request: pytest.FixtureRequest) -> dict[str, Case]:
    """The cases that are run."""
    left_out = () if "release" in request.config.option.markexpr else FOR_RELEASES
    return {name: case for name, case in CASES.items() if name not in left_out}


def stacks(cases: dict[str, Case]) -> dict[str, Any]:
    """A stack for each case, between two that are sound."""
    found: dict[str, Any] = {"baseline": []}
    for name, case in cases.items():
        use = [{"use": "faulty", **case.options}, "witness"]
        found[name] = {"set": TWO_RANKS if case.ranks == 2 else {}, "use": use}
    return {**found, "last": []}


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, site: Path, cases: dict[str, Case]
) -> Finished:
    """The program after it has run all of them."""
    program = Program(tmp_path_factory.mktemp("limits"), site)
    measure = {"warmup": 2, "steps": 20, "rounds": 2, "timeout_seconds": LIMIT_SECONDS}
    words = ("--quiet", "--oversubscribe", "--format", "json")
    return program.run(null_scenario(stacks(cases), measure=measure), *words)


@pytest.mark.parametrize("stack", EACH)
def test_the_row_says_what_it_was_doing_at_the_limit(finished: Finished, stack: str) -> None:
    row = finished.result(stack)
    assert row.status.value == CASES[stack].status
    assert CASES[stack].reason in row.reasons[0]
    assert f"at the limit of {LIMIT_SECONDS:g} s" in row.reasons[0]


@pytest.mark.parametrize("stack", EACH)
def test_the_stacks_of_its_threads_are_in_the_log(finished: Finished, stack: str) -> None:
    log = finished.log(stack, rank=CASES[stack].ranks - 1)
    assert "Current thread" in log
    assert f"in {CASES[stack].options['fault']}" in log


def test_it_is_not_run_again_in_later_rounds_but_sound_stacks_are(
    finished: Finished, cases: dict[str, Case]
) -> None:
    names = [row.experiment.stack.name for row in finished.results]
    assert {name: names.count(name) for name in names} == {
        **dict.fromkeys(cases, 1),
        "baseline": 2,
        "last": 2,
    }


def test_sound_stacks_are_not_affected(finished: Finished) -> None:
    sound = [r for r in finished.results if r.experiment.stack.name in ("baseline", "last")]
    assert {row.status for row in sound} == {Status.OK}


def test_no_process_is_left_behind(finished: Finished) -> None:
    assert finished.program.left_behind() == []


def test_plugins_are_closed_when_the_worker_listens(finished: Finished) -> None:
    closed = {
        stack: (
            finished.program.results_folder / finished.result(stack).folder / "closed-by-rank0"
        ).exists()
        for stack in ("sleeps", "is-deaf")
    }
    assert closed == {"sleeps": True, "is-deaf": False}


def test_the_rank_that_was_not_to_blame_keeps_its_result(finished: Finished) -> None:
    ranks = {rank.rank: rank.status for rank in finished.result("one-sleeps").ranks}
    assert ranks[0] is Status.OK


def test_the_program_exits_1(finished: Finished) -> None:
    assert finished.code == 1


def test_a_store_that_cannot_grow_ends_the_session_and_keeps_what_is_in_it(
    program: Program,
) -> None:
    """As on a full disk: the rows that were acknowledged are there, and nobody interrupted it."""
    scenario = null_scenario({"baseline": [], "other": []}, measure={"rounds": 40, "steps": 2})
    path = write_scenario(program.folder / "scenario.yaml", scenario)
    process = program.start(
        "run",
        str(path),
        "--quiet",
        "--format",
        "json",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)),
    )
    finished = program.finish(process)
    assert finished.code == 1
    assert "check free space" in finished.err
    assert {row["status"] for row in finished.document["experiments"]} == {"infra_error"}
    stored = program.results()
    assert len(stored) >= 2
    assert all(result.status is Status.OK for result in stored)
    assert program.left_behind() == []

"""Runs that are lost by chance are tried again: every attempt is kept, the last one counts."""

from __future__ import annotations

from pathlib import Path

from faults.program import Finished, Program, null_scenario

from accel_bench.result import Status

ROUNDS = 4


def run(program: Program, tmp_path: Path) -> Finished:
    """Four rounds, of which about a third crash."""
    program.environment = {"FAULTY_COUNTER": str(tmp_path / "counter")}
    stacks = {"baseline": [], "shaky": [{"use": "faulty", "fault": "sometimes"}]}
    measure = {"warmup": 2, "steps": 4, "rounds": ROUNDS}
    scenario = null_scenario(stacks, measure=measure)
    return program.run(scenario, "--quiet", "--retries", "2", "--format", "json")


def test_every_attempt_is_kept_and_only_the_last_one_counts(
    program: Program, tmp_path: Path
) -> None:
    finished = run(program, tmp_path)
    attempts: dict[int, list[Status]] = {}
    for row in finished.results:
        if row.experiment.stack.name == "shaky":
            assert row.attempt == len(attempts.setdefault(row.round, []))
            attempts[row.round].append(row.status)
    starts = (tmp_path / "counter").stat().st_size
    assert sum(map(len, attempts.values())) == starts > ROUNDS
    assert all(found[-1] is Status.OK for found in attempts.values())
    assert all(status is Status.CRASHED for found in attempts.values() for status in found[:-1])
    rows = {row["stack"]: row for row in finished.document["experiments"]}
    assert rows["shaky"]["status"] == "ok"
    assert rows["shaky"]["runs"] == ROUNDS
    assert finished.code == 0
    assert program.left_behind() == []

"""`ray`: a cluster of two workers for real; experiments on it, and one worker killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from faults.program import wait_for
from launched import PROGRAM, Launched

from accel_bench import Status

if TYPE_CHECKING:
    from .conftest import Cluster

RAY = ("--set", "launcher.use=ray", "-q", "--oversubscribe")
ON_ONE_NODE = {"device": "cpu", "devices": 1}


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Launched]:
    program = Launched(tmp_path, tmp_path)
    yield program
    program.end()


def test_a_killed_worker_is_replaced_and_its_run_is_tried_again(
    program: Launched, cluster: Cluster
) -> None:
    program.write(
        stacks={"baseline": [], "other": []},
        resources={**ON_ONE_NODE, "nodes": 2},
        engine={"use": "null", "step_seconds": 0.1},
        measure={"warmup": 2, "steps": 40, "rounds": 1},
    )
    address = ("--set", f"launcher.address={cluster.address}")
    command = [*PROGRAM, "run", "scenario.yaml", *RAY, *address, "--retries", "1"]
    process = program.start_command(command)
    assert wait_for(lambda: list(program.results_folder.glob("runs/*/*/rank1.heartbeat")))
    cluster.hosts()[0].kill()
    done = program.finish(process)
    assert done.code == 0, done.err + done.out
    assert len(done.results) == 3
    lost, *others = done.results
    assert lost.status is Status.FAILED
    assert "is lost" in lost.reasons[0]
    assert [result.status for result in others] == [Status.OK, Status.OK]
    assert [result.attempt for result in done.results] == [0, 1, 0]
    assert program.left_behind() == []

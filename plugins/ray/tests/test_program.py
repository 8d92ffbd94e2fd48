"""`ray` on a real cluster of two workers: experiments, and a killed worker."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from faults.program import wait_for
from launched import PROGRAM, Launched

from accel_bench import Result, Status

from .conftest import Cluster, running_cluster

RAY = ("--set", "launcher.use=ray", "-q", "--oversubscribe")
ON_ONE_NODE = {"device": "cpu", "devices": 1}


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Launched]:
    program = Launched(tmp_path, tmp_path)
    yield program
    program.end()


def start(
    program: Launched, cluster: Cluster, *options: str, **changes: Any
) -> subprocess.Popen[str]:
    """Start the program on a scenario of two stacks that survives a killed worker."""
    program.write(**{"stacks": {"baseline": [], "other": []}, "resources": ON_ONE_NODE, **changes})
    address = ("--set", f"launcher.address={cluster.address}")
    command = [*PROGRAM, "run", "scenario.yaml", *RAY, *address, "--retries", "1", *options]
    return program.start_command(command)


def ranks_of(host: psutil.Process) -> list[psutil.Process]:
    """Return the ranks that an actor has started, without their reapers."""
    try:
        return [one for one in host.children(recursive=True) if is_rank(one)]
    except psutil.NoSuchProcess:
        return []


def is_rank(process: psutil.Process) -> bool:
    """Return whether a process is a rank."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return "accel_bench.worker" in words and not any("reaper" in word for word in words)


def test_experiments_share_the_cluster_and_one_goes_on_after_its_worker_is_killed(
    program: Launched, cluster: Cluster
) -> None:
    sizes = [1, 2, 3, 4, 5, 6]
    process = start(
        program,
        cluster,
        "--set",
        "launcher.at_once=2",
        sweep={"train.micro_batch_size": sizes},
        engine={"use": "null", "step_seconds": 0.1},
        measure={"warmup": 2, "steps": 20, "rounds": 1},
    )
    assert wait_for(lambda: len([host for host in cluster.hosts() if ranks_of(host)]) == 2)
    hosts = cluster.hosts()
    assert len({host.ppid() for host in hosts}) == 2, "two actors on one worker"
    assert [len(ranks_of(host)) for host in hosts] == [1, 1]
    (rank,) = ranks_of(hosts[0])
    hosts[0].kill()
    done = program.finish(process)
    assert not rank.is_running()
    assert done.code == 0, done.err + done.out
    lost, again = (result for result in done.results if key(result) == key_of_failed(done.results))
    assert lost.status is Status.FAILED
    assert "is lost" in lost.reasons[0]
    assert (lost.attempt, again.attempt) == (0, 1)
    completed = [result for result in done.results if result.status.completed]
    assert len({key(result) for result in completed}) == len(completed) == 2 * len(sizes)
    assert len(done.results) == len(completed) + 1
    assert program.left_behind() == []
    assert cluster.left_behind() == []


def key(result: Result) -> tuple[str, str]:
    """Return a key of experiments; equal stacks have one id."""
    return result.experiment.id, result.experiment.stack.name


def key_of_failed(results: Sequence[Result]) -> tuple[str, str]:
    """Return the experiment of the only run that has failed."""
    (failed,) = [result for result in results if not result.status.completed]
    return key(failed)


@pytest.mark.parametrize(("first", "others", "stated"), [(3, 1, 4), (1, 3, 2)])
def test_rank_0_starts_on_the_worker_with_the_memory_of_the_first_node(
    program: Launched, cluster: Cluster, first: int, others: int, stated: int
) -> None:
    memory = {"first_node_host_memory_gib": first, "host_memory_gib": others}
    process = start(
        program,
        cluster,
        resources={**ON_ONE_NODE, "nodes": 2, **memory},
        stacks={"baseline": []},
        engine={"use": "null", "step_seconds": 0.1},
        measure={"warmup": 1, "steps": 10, "rounds": 1},
    )
    assert wait_for(lambda: sum(len(ranks_of(host)) for host in cluster.hosts()) == 2)
    (host,) = [one for one in cluster.hosts() if starts_rank_0(one)]
    assert f"memory,{stated * 2**30}," in " ".join(cluster.worker_of(host).cmdline())
    done = program.finish(process)
    assert done.code == 0, done.err + done.out
    assert cluster.left_behind() == []


def test_ranks_on_workers_that_differ_are_counted_node_by_node(
    program: Launched, cluster: Cluster
) -> None:
    process = start(
        program,
        cluster,
        resources={"device": "cpu", "devices_by_node": [2, 1]},
        stacks={"baseline": []},
        engine={"use": "null", "step_seconds": 0.1},
        measure={"warmup": 1, "steps": 20, "rounds": 1},
    )
    assert wait_for(lambda: sum(len(ranks_of(host)) for host in cluster.hosts()) == 3)
    assert sorted(
        sorted(one.environ()["RANK"] for one in ranks_of(host)) for host in cluster.hosts()
    ) == [["0", "1"], ["2"]]
    done = program.finish(process)
    assert done.code == 0, done.err + done.out
    (result,) = done.results
    assert [node.rank for node in result.nodes] == [0, 1, 2]
    assert cluster.left_behind() == []


def starts_rank_0(host: psutil.Process) -> bool:
    """Return whether an actor has started rank 0."""
    return any(one.environ().get("RANK") == "0" for one in ranks_of(host))


def test_more_memory_than_a_worker_states_is_refused(program: Launched, cluster: Cluster) -> None:
    memory = {"first_node_host_memory_gib": 5, "host_memory_gib": 1}
    done = program.finish(start(program, cluster, resources={**ON_ONE_NODE, "nodes": 2, **memory}))
    assert done.code == 2
    assert "2 nodes, 1 with CPU 1, memory 5 GiB, then 1 with CPU 1, memory 1 GiB" in done.err
    assert "memory 4 GiB" in done.err


@pytest.mark.release
def test_two_ranks_on_two_workers_of_which_one_is_killed(
    program: Launched, cluster: Cluster
) -> None:
    engine = {"use": "null", "step_seconds": 0.1}
    measure = {"warmup": 2, "steps": 40, "rounds": 1}
    resources = {**ON_ONE_NODE, "nodes": 2}
    process = start(program, cluster, engine=engine, measure=measure, resources=resources)
    assert wait_for(lambda: list(program.results_folder.glob("runs/*/*/rank1.heartbeat")))
    cluster.hosts()[0].kill()
    done = program.finish(process)
    assert done.code == 0, done.err + done.out
    lost, *others = done.results
    assert lost.status is Status.FAILED
    assert "is lost" in lost.reasons[0]
    assert [result.status for result in others] == [Status.OK, Status.OK]
    assert [result.attempt for result in done.results] == [0, 1, 0]
    assert [node.rank for node in others[0].nodes] == [0, 1]
    assert program.left_behind() == []


@pytest.mark.release
def test_experiments_of_a_worker_that_does_not_come_back_go_on_on_the_other(
    program: Launched,
) -> None:
    with running_cluster() as cluster:
        options = ("launcher.at_once=2", "launcher.connect_seconds=20")
        process = start(
            program,
            cluster,
            *(word for one in options for word in ("--set", one)),
            sweep={"train.micro_batch_size": [1, 2, 3]},
            engine={"use": "null", "step_seconds": 0.1},
            measure={"warmup": 2, "steps": 20, "rounds": 2},
        )
        assert wait_for(lambda: len([host for host in cluster.hosts() if ranks_of(host)]) == 2)
        host = cluster.hosts()[0]
        cluster.worker_of(host).kill()
        host.kill()
        done = program.finish(process)
    assert done.code == 0, done.err + done.out
    assert [result.status for result in done.results].count(Status.FAILED) == 1
    completed = {(*key(one), one.round) for one in done.results if one.status.completed}
    assert len(completed) == 3 * 2 * 2
    assert program.left_behind() == []


@pytest.mark.release
def test_ctrl_c_ends_all_experiments_that_run_at_once(program: Launched, cluster: Cluster) -> None:
    process = start(
        program,
        cluster,
        *("--set", "launcher.at_once=2"),
        sweep={"train.micro_batch_size": [1, 2, 3]},
        engine={"use": "null", "step_seconds": 0.1},
        measure={"warmup": 2, "steps": 5000, "rounds": 1},
    )
    assert wait_for(lambda: len([host for host in cluster.hosts() if ranks_of(host)]) == 2)
    process.send_signal(signal.SIGINT)
    done = program.finish(process)
    assert done.code == 130
    assert [result.status for result in done.results] == [Status.INTERRUPTED] * 2
    assert program.left_behind() == []
    assert cluster.left_behind() == []

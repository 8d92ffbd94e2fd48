"""The launcher `env` under torchrun, MPI or a shell, with errors for lost processes."""

from __future__ import annotations

import os
import shutil
import signal

import pytest
from cli.program import call
from fault_plugins.distribution import install
from faults.program import wait_for
from launched import PROGRAM, TORCHRUN, Launched, by_hand, free_port

from accel_bench import Status

ON_TWO_NODES = {"device": "cpu", "nodes": 2, "devices": 1}

ENV = ("--set", "launcher.use=env", "-q")


@pytest.mark.release
def test_ranks_of_torchrun_train_in_fresh_processes(program: Launched) -> None:
    file = program.write(stacks={"baseline": [], "other": []})
    options = ("--standalone", "--nproc-per-node", "2")
    done = program.call_command(
        [*TORCHRUN, *options, "-m", "accel_bench", "run", file, *ENV, "--oversubscribe"]
    )
    assert done.code == 0, done.err
    assert len(done.results) == 2
    for result in done.results:
        assert result.status is Status.OK, result.reasons
        assert [rank.rank for rank in result.ranks] == [0, 1]
        assert [node.rank for node in result.nodes] == [0, 1]
        assert {node.name for node in result.nodes} == {os.uname().nodename}
        assert result.nodes[0].port is not None
        assert result.exits == ("exit 0", "exit 0")
        folder = program.results_folder / result.folder
        assert (folder / "rank1.log").exists()
    assert program.left_behind() == []
    assert program.ranks_left() == []
    key = program.folder / "cache" / "agents.key"
    assert key.stat().st_mode & 0o777 == 0o600


def test_a_lost_rank_is_named_with_its_node_and_leaves_nothing(program: Launched) -> None:
    engine = {"use": "null", "step_seconds": 0.05}
    file = program.write(engine=engine, measure={"warmup": 2, "steps": 2000, "rounds": 2})
    port = free_port()
    command = [*PROGRAM, "run", file, *ENV, "--oversubscribe"]
    agent = program.start_command(command, by_hand(1, port))
    parent = program.start_command(command, by_hand(0, port))
    assert wait_for(lambda: list(program.results_folder.glob("runs/*/*/rank1.heartbeat")))
    agent.send_signal(signal.SIGKILL)
    done = program.finish(parent)
    (result,) = done.results
    assert result.status is Status.FAILED
    (reason,) = result.reasons
    assert reason.startswith("rank 1: the connection to node ")
    assert os.uname().nodename in reason
    assert "127.0.0.1" in reason
    assert done.code == 1
    program.finish(agent)
    assert program.left_behind() == []


@pytest.mark.parametrize(
    ("variables", "culprits"),
    [
        ({}, ["launcher env: this is one process", "asks for 2"]),
        (by_hand(0, 1, size=3), ["torchrun has started 3 processes", "asks for 2"]),
        (
            {**by_hand(0, 1), "LOCAL_WORLD_SIZE": "1"},
            ["1 processes on this node", os.uname().nodename],
        ),
        ({**by_hand(0, 1), "GROUP_WORLD_SIZE": "2"}, ["2 nodes", "resources.nodes is 1"]),
        ({"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "2"}, ["SkyPilot", "2 nodes"]),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, ["MASTER_ADDR"]),
    ],
)
def test_processes_that_the_scenario_does_not_ask_for_are_refused(
    program: Launched,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    culprits: list[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = call("run", program.write(), *ENV)
    assert done.code == 2
    assert all(culprit in done.err for culprit in culprits), done.err
    assert program.results() == []


def test_ranks_on_nodes_that_differ_give_the_losses_of_local_ones(program: Launched) -> None:
    work = {"device": "cpu", "threads": 1}
    program.write_training(resources={**work, "devices": 3})
    more = ("scenario.yaml", "-q", "--oversubscribe")
    alone = program.call_command([*PROGRAM, "run", *more])
    assert alone.code == 0, alone.err
    program.write_training(resources={**work, "devices_by_node": [2, 1]})
    port, command = free_port(), [*PROGRAM, "run", *more, *ENV[:2]]

    def on_node(rank: int) -> dict[str, str]:
        """The variables of a rank: two are on the first node, and one on the second."""
        node, local_rank = divmod(rank, 2)
        place = {"LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(2 - node)}
        group = {"GROUP_RANK": str(node), "GROUP_WORLD_SIZE": "2"}
        return {**by_hand(rank, port, size=3), **place, **group}

    agents = [program.start_command(command, on_node(rank)) for rank in (1, 2)]
    done = program.call_command(command, on_node(0))
    assert done.code == 0, done.err
    assert [program.finish(agent).code for agent in agents] == [0, 0]
    local, several = done.results
    assert several.status.completed, several.reasons
    assert [node.rank for node in several.nodes] == [0, 1, 2]
    assert several.experiment.scenario.resources.devices_of(1) == 1
    for one, other in zip(local.ranks, several.ranks, strict=True):
        assert one.window and other.window
        losses = [[step.loss for step in rank.window.samples] for rank in (one, other)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert program.left_behind() == []


PREPARING = """
import os
from accel_bench import Plugin, hookimpl


class Preparing(Plugin):
    "Fills the cache of each node, and fails in a rank that finds it empty."

    @hookimpl
    def prepare_experiment(self, run):
        if os.environ["NODE"] == os.environ.get("BROKEN"):
            raise OSError("no room on this disk")
        (run.cache_folder / "prepared").write_text(os.environ["NODE"])
        print("prepared", os.environ["NODE"])

    @hookimpl
    def start_metrics(self, run):
        (run.folder / "trace.txt").write_text(os.environ["NODE"])

    @hookimpl
    def report_evidence(self, run):
        return {"prepared": (run.cache_folder / "prepared").read_text()}
"""


@pytest.mark.release
def test_each_node_is_prepared_and_what_its_rank_leaves_comes_back(program: Launched) -> None:
    install(program.site, "accel-bench-preparing", {"preparing": "Preparing"}, PREPARING)
    file = program.write(stacks={"filled": ["preparing"]}, resources=ON_TWO_NODES)
    command = [*PROGRAM, "run", file, *ENV]
    port = free_port()

    def on_node(number: int) -> dict[str, str]:
        """The variables of a node whose cache and home are its own."""
        return {
            **by_hand(number, port),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(number),
            "GROUP_WORLD_SIZE": "2",
            "NODE": f"node-{number}",
            "ACCEL_BENCH_CACHE": str(program.folder / f"cache-{number}"),
            "ACCEL_BENCH_SECRET": "canary-of-the-secret",
        }

    agent = program.start_command(command, on_node(1))
    done = program.call_command(command, on_node(0))
    assert done.code == 0, done.err
    assert program.finish(agent).code == 0
    (result,) = done.results
    shown = [rank.evidence["preparing"]["prepared"] for rank in result.ranks]
    assert shown == ["node-0", "node-1"]
    folder = program.results_folder / result.folder
    assert (folder / "trace.txt").read_text() == "node-0"
    assert (folder / "rank1.trace.txt").read_text() == "node-1"
    (log,) = program.results_folder.glob("runs/*/prepare-*/rank0.log")
    assert "prepared node-0" in log.read_text()
    assert "prepared node-1" in log.read_text()
    everything = [path for path in program.results_folder.rglob("*") if path.is_file()]
    assert not [path for path in everything if b"canary-of" in path.read_bytes()]

    agent = program.start_command(command, {**on_node(1), "BROKEN": "node-1"})
    done = program.call_command(command, on_node(0))
    assert done.code == 1
    program.finish(agent)
    reasons = done.results[-1].reasons
    assert "no room on this disk" in reasons[0]
    assert f"on node {os.uname().nodename}" in reasons[0]
    assert program.left_behind() == []


@pytest.mark.release
@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs mpirun (Debian: openmpi-bin)")
def test_ranks_of_mpirun_have_the_cores_that_it_binds_them_to(program: Launched) -> None:
    file = program.write()
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    done = program.call_command([*mpirun, *PROGRAM, "run", file, *ENV, "--oversubscribe"])
    assert done.code == 0, done.err
    (result,) = done.results
    assert result.status is Status.OK, result.reasons
    assert [rank.rank for rank in result.ranks] == [0, 1]
    first, second = result.nodes
    apart = not set(first.affinity) & set(second.affinity)
    assert result.machine is not None
    assert result.machine.cores == (first.cores + second.cores if apart else first.cores)
    assert program.left_behind() == []


@pytest.mark.release
def test_ranks_that_share_no_folder_give_the_losses_of_local_ones(program: Launched) -> None:
    program.write_training()
    options = ("--standalone", "--nproc-per-node", "2", "-m", "accel_bench", "run")
    more = ("scenario.yaml", "-q", "--oversubscribe")
    assert program.call_command([*PROGRAM, "run", *more]).code == 0
    done = program.call_command([*TORCHRUN, *options, *more, *ENV[:2]])
    assert done.code == 0, done.err
    local, adopted = done.results
    losses = [
        [sample.loss for rank in one.ranks if rank.window for sample in rank.window.samples]
        for one in (local, adopted)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert [rank.effective.world_size for rank in adopted.ranks] == [2, 2]

"""`slurm`: a job of two nodes for real; submitted, collected, cancelled, pre-empted and resumed."""

from __future__ import annotations

import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.program import call
from faults.program import wait_for
from launched import PROGRAM, Launched
from slurm_cluster import ADDRESS, Cluster, running_cluster

from accel_bench import Status

SLURM = ("--set", "launcher.use=slurm", "-q", "--oversubscribe")
ON_TWO_NODES = {"device": "cpu", "nodes": 2, "devices": 1}


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Launched]:
    program = Launched(tmp_path, tmp_path)
    yield program
    program.end()


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


def submit(program: Launched, cluster: Cluster, *more: str) -> subprocess.Popen[str]:
    """Start the command, which submits itself."""
    command = cluster.inside(*PROGRAM, "run", "scenario.yaml", *SLURM, *more)
    return program.start_command(command, cluster.variables)


def job_of(program: Launched) -> str:
    """Return the number of the job, once it runs."""
    assert wait_for(lambda: list(program.folder.glob("slurm-*.out")))
    (output,) = program.folder.glob("slurm-*.out")
    return output.stem.partition("-")[2]


def test_a_job_on_two_nodes_is_submitted_and_collected(program: Launched, cluster: Cluster) -> None:
    program.write(stacks={"baseline": [], "other": []}, resources=ON_TWO_NODES)
    done = program.finish(submit(program, cluster))
    assert done.code == 0, done.err + done.out
    assert "other" in done.out
    assert len(done.results) == 2
    for result in done.results:
        assert result.status is Status.OK, result.reasons
        assert [node.name for node in result.nodes] == ["n1", "n2"]
        assert {node.address for node in result.nodes} == {ADDRESS}
        assert {node.interface for node in result.nodes} == {"lo"}
        assert result.nodes[0].port is not None
    assert program.left_behind() == []
    assert program.ranks_left() == []


def test_a_dry_run_prints_the_script_and_submits_nothing(
    program: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    name = str(Path(program.write(resources={"device": "cpu", "nodes": 2, "devices": 4})))
    options = ("partition=gpu", "time=4:00:00", "account=me", "gres=gpu:l4:4")
    settings = [word for one in options for word in ("--set", f"launcher.{one}")]
    settings += ["--set", "launcher.extra=['--mem=64G']", "--set", "description=a b;c"]
    done = call("run", name, *SLURM, *settings, "--dry-run")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == "#!/bin/bash"
    asked = {line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")}
    assert asked >= {
        "--nodes=2",
        "--ntasks-per-node=4",
        "--requeue",
        "--partition=gpu",
        "--time=4:00:00",
        "--account=me",
        "--gres=gpu:l4:4",
        "--mem=64G",
    }
    typed = call("run", name, *SLURM, "--set", "resources.device_type=l4", "--dry-run")
    assert "#SBATCH --gpus-per-node=l4:4" in typed.out.splitlines()
    words = shlex.split(lines[-1])
    assert words[0] == "exec"
    assert words[words.index("-m") + 1 :] == [
        "accel_bench",
        *("run", name, *SLURM, *settings),
        "$@",
    ]


def test_what_slurm_lacks_is_named(program: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    name = program.write(resources=ON_TWO_NODES)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
    done = call("run", name, *SLURM)
    assert done.code == 2
    assert "job 7 has 1 nodes, and the scenario asks for 2" in done.err
    monkeypatch.delenv("SLURM_JOB_ID")
    monkeypatch.setenv("PATH", str(program.folder))
    done = call("run", name, *SLURM)
    assert done.code == 2
    assert "sbatch cannot be started" in done.err
    done = call("run", name, *SLURM, "--set", "launcher.extra=['rm -rf /']")
    assert done.code == 2
    assert "'rm -rf /' is no option of sbatch" in done.err


@pytest.mark.release
def test_ranks_on_two_nodes_train_by_gloo(program: Launched, cluster: Cluster) -> None:
    program.write_training(resources={**ON_TWO_NODES, "threads": 1})
    done = program.finish(submit(program, cluster))
    assert done.code == 0, done.err + done.out
    (result,) = done.results
    assert result.status.completed, result.reasons
    assert [rank.effective.world_size for rank in result.ranks] == [2, 2]
    assert [rank.effective.strategy for rank in result.ranks] == ["DistributedDataParallel"] * 2


@pytest.mark.release
def test_ctrl_c_cancels_the_job(program: Launched, cluster: Cluster) -> None:
    engine = {"use": "null", "step_seconds": 0.05}
    measure = {"warmup": 2, "steps": 5000, "rounds": 1}
    program.write(engine=engine, measure=measure, resources=ON_TWO_NODES)
    process = submit(program, cluster)
    job = job_of(program)
    assert wait_for(lambda: list(program.results_folder.glob("runs/*/*/rank1.heartbeat")))
    process.send_signal(signal.SIGINT)
    done = program.finish(process)
    assert done.code == 130
    assert f"job {job} is cancelled" in done.err
    assert wait_for(lambda: not cluster.call("squeue", "-h"))
    assert program.left_behind() == []


@pytest.mark.release
def test_a_job_that_is_pre_empted_goes_on_where_it_was(program: Launched, cluster: Cluster) -> None:
    engine = {"use": "null", "step_seconds": 0.05}
    measure = {"warmup": 2, "steps": 40, "rounds": 3}
    program.write(engine=engine, measure=measure, resources=ON_TWO_NODES)
    process = submit(program, cluster)
    job = job_of(program)
    assert wait_for(lambda: len(program.results()) == 1)
    cluster.call("scontrol", "requeue", job)
    done = program.finish(process)
    assert done.code == 0, done.err + done.out
    completed = [result.round for result in done.results if result.status.completed]
    assert sorted(completed) == [0, 1, 2]
    assert len({result.session for result in done.results}) == 2
    assert program.left_behind() == []

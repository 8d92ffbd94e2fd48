"""`slurm`: a real job of two nodes, submitted, collected, cancelled, pre-empted and resumed."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from accel_bench_cluster import node_resources, slurm
from cli.program import call
from faults.program import wait_for
from launched import PROGRAM, Launched
from store.store_factory import make_experiment

from accel_bench import Scenario, Status, read_machine
from accel_bench.errors import AccelBenchError, ScenarioError

from .slurm_cluster import ADDRESS, Cluster, running_cluster

SLURM = ("--set", "launcher.use=slurm", "-q", "--oversubscribe")
ON_TWO_NODES = {"device": "cpu", "nodes": 2, "devices": 1}


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
    ]


def test_what_slurm_lacks_is_named(program: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    name = program.write(resources=ON_TWO_NODES)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
    done = call("run", name, *SLURM)
    assert done.code == 2
    assert "job 7 has 1 of the 2 nodes that the scenario asks for" in done.err
    monkeypatch.delenv("SLURM_JOB_ID")
    monkeypatch.setenv("PATH", str(program.folder))
    done = call("run", name, *SLURM)
    assert done.code == 2
    assert "sbatch cannot be started" in done.err
    done = call("run", name, *SLURM, "--set", "launcher.extra=['rm -rf /']")
    assert done.code == 2
    assert "'rm -rf /' is no option of sbatch" in done.err


ROOMY = {**ON_TWO_NODES, "host_memory_gib": 1, "first_node_host_memory_gib": 2}
"""Memory that only the cluster's node `n2` has."""


@pytest.mark.release
def test_rank_0_gets_a_node_with_more_memory(program: Launched, cluster: Cluster) -> None:
    program.write(resources=ROOMY)
    done = program.finish(submit(program, cluster))
    assert done.code == 0, done.err + done.out
    (result,) = done.results
    assert result.status is Status.OK, result.reasons
    assert [(node.rank, node.name) for node in result.nodes] == [(0, "n2"), (1, "n1")]


def test_the_first_node_is_asked_for_separately(
    program: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def components(**resources: Any) -> list[set[str]]:
        every = {**ROOMY, **resources}
        if "devices_by_node" in every:
            del every["devices"], every["nodes"]
        name = program.write(resources=every)
        extra = ("--set", "launcher.extra=['--exclusive']", "--set", "launcher.partition=big")
        done = call("run", name, *SLURM, *extra, "--dry-run")
        assert done.code == 0, done.err
        parts = done.out.split("#SBATCH hetjob")
        return [{line.removeprefix("#SBATCH ") for line in part.splitlines()} for part in parts]

    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    shared = {"--exclusive", "--partition=big", "--ntasks-per-node=4"}
    first, others = components(nodes=3, devices=4, first_node_host_memory_gib=256)
    assert first >= {"--nodes=1", "--mem=256G", *shared}
    assert others >= {"--nodes=2", "--mem=1G", *shared}
    (alike,) = components(nodes=3, devices=4, first_node_host_memory_gib=1)
    assert alike >= {"--nodes=3", "--mem=1G", *shared}
    large, small = components(nodes=3, devices_by_node=[8, 8, 4], first_node_host_memory_gib=1)
    assert large >= {"--nodes=2", "--ntasks-per-node=8", "--mem=1G"}
    assert small >= {"--nodes=1", "--ntasks-per-node=4", "--mem=1G"}
    first, *others = components(nodes=3, devices_by_node=[8, 8, 4], first_node_host_memory_gib=2)
    assert first >= {"--nodes=1", "--ntasks-per-node=8", "--mem=2G"}
    assert [len(others), others[1] >= {"--nodes=1", "--ntasks-per-node=4"}] == [2, True]
    (alone,) = components(nodes=1)
    assert alone >= {"--nodes=1", "--mem=2G"}


def test_one_step_starts_the_agents_of_all_components() -> None:
    sizes = {"SLURM_HET_SIZE": "2", "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}
    groups = {f"SLURM_JOB_NUM_NODES_HET_GROUP_{number}": str(number + 1) for number in range(2)}
    assert slurm.check_job({**sizes, **groups}, 3) == [1, 2]
    with pytest.raises(
        ScenarioError, match="job 7 has 3 of the 4 nodes that the scenario asks for"
    ):
        slurm.check_job({**sizes, **groups}, 4)
    text = " ".join(slurm.srun_command([1, 2], [4, 4]))
    first, second = text.split(" : ")
    assert first.startswith("srun --het-group=0 --nodes=1 --ntasks=4 --ntasks-per-node=4 ")
    assert second.startswith("--het-group=1 --nodes=1 --ntasks=4 --ntasks-per-node=4 ")
    assert " : " not in " ".join(slurm.srun_command([1, 2], [4]))
    first, second = " ".join(slurm.srun_command([1, 2], [8, 4, 4])).split(" : ")
    assert first.startswith("srun --het-group=0 --nodes=1 --ntasks=8 --ntasks-per-node=8 ")
    assert second.startswith("--het-group=1 --nodes=2 --ntasks=8 --ntasks-per-node=4 ")
    with pytest.raises(ScenarioError, match=r"nodes with \[8, 4\] devices are one component"):
        slurm.srun_command([2], [8, 4])


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
def test_ranks_on_nodes_that_differ_train_by_gloo(program: Launched, cluster: Cluster) -> None:
    program.write_training(resources={"device": "cpu", "devices_by_node": [1, 2], "threads": 1})
    done = program.finish(submit(program, cluster))
    assert done.code == 0, done.err + done.out
    (result,) = done.results
    assert result.status.completed, result.reasons
    assert [rank.effective.world_size for rank in result.ranks] == [3, 3, 3]
    first, second, third = (node.name for node in result.nodes)
    assert first != second == third


@pytest.mark.release
def test_tasks_that_srun_has_started_are_taken_over(program: Launched, cluster: Cluster) -> None:
    file = program.write(resources=ON_TWO_NODES)
    srun = ["srun", "--nodes=2", "--ntasks-per-node=1"]
    taking_over = ("--set", "launcher.use=env", "-q", "--oversubscribe")
    command = cluster.inside(*srun, *PROGRAM, "run", file, *taking_over)
    # The names of the nodes are none that this machine could resolve.
    variables = {**cluster.variables, "MASTER_ADDR": ADDRESS}
    done = program.finish(program.start_command(command, variables))
    assert done.code == 0, done.err + done.out
    (result,) = done.results
    assert result.status is Status.OK, result.reasons
    assert [(node.rank, node.name) for node in result.nodes] == [(0, "n1"), (1, "n2")]


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


STATES = """n=$(cat polls 2>/dev/null || echo 0)
echo $((n + 1)) > polls
set -- {states}
[ "$n" -ge $# ] && n=$(($# - 1))
shift "$n"
[ "$1" = down ] && {{ echo "Unable to contact slurm controller" >&2; exit 1; }}
echo "JobId=7 JobState=$1 ExitCode=0:0"
"""
"""A scontrol script that prints one of these states per call, then the last one."""


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """SLURM's programs as scripts; `scancel` fails, and leaves a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name, value in (("POLL_SECONDS", 0.0), ("MOST_FAILURES", 3), ("PREEMPTED_POLLS", 2)):
        monkeypatch.setattr(slurm, name, value)

    def write(*states: str) -> None:
        texts = {"sbatch": "echo 7", "scontrol": STATES.format(states=" ".join(states))}
        texts["scancel"] = "touch cancelled; echo denied >&2; exit 1"
        for name, text in texts.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / name).chmod(0o755)

    return write


@pytest.mark.parametrize(
    ("states", "code"),
    [
        (["down", "down", "RUNNING", "down", "down", "down", "COMPLETED"], 0),
        (["PREEMPTED", "PENDING", "PREEMPTED", "RUNNING", "COMPLETED"], 0),
        (["PREEMPTED"], 1),
        (["RUNNING", "REVOKED"], 1),
        (["LAUNCH_FAILED"], 1),
        (["TIMEOUT"], 1),
    ],
)
def test_a_job_is_followed_to_its_last_state(
    fake_slurm: Callable[..., None], states: list[str], code: int
) -> None:
    fake_slurm(*states)
    assert slurm.run_job("script") == code
    assert not Path("cancelled").exists()


def test_a_controller_that_stays_down_cancels_no_job(fake_slurm: Callable[..., None]) -> None:
    fake_slurm("RUNNING", "down")
    with pytest.raises(AccelBenchError, match=r"contact slurm controller; job 7 is not cancelled"):
        slurm.run_job("script")
    assert not Path("cancelled").exists()


def test_an_interruption_stays_where_scancel_fails(
    fake_slurm: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    fake_slurm("RUNNING")
    monkeypatch.setattr(slurm.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        slurm.run_job("script")
    assert Path("cancelled").exists()
    assert "job 7 could not be cancelled: scancel failed: denied" in capsys.readouterr().err


def scenarios(*resources: dict[str, object]) -> list[Scenario]:
    """Return scenarios with these resources."""
    return [make_experiment(resources=one).scenario for one in resources]


def test_a_job_asks_for_the_devices_of_all_points(monkeypatch: pytest.MonkeyPatch) -> None:
    without = read_machine().model_copy(update={"gpus": ()})
    monkeypatch.setattr(node_resources, "read_machine", lambda: without)
    asked, cpu, cuda = slurm.gpu_options, {"device": "cpu"}, {"device": "cuda"}
    assert asked(scenarios(cpu), 4) == []
    assert asked(scenarios(cpu, cuda), 4) == ["--gpus-per-node=4"]
    typed = scenarios(cuda, {**cuda, "device_type": "l4"})
    assert asked(typed, 2) == ["--gpus-per-node=l4:2"]
    for kind, name in {"a100 80gb": "a100", "A100-80G": "a100", "RTX 4090": "rtx_4090"}.items():
        named = scenarios({**cuda, "device_type": kind})
        assert asked(named, 8) == [f"--gpus-per-node={name}:8"]
    with pytest.raises(ScenarioError, match="device types a100 and l4"):
        asked([*typed, *scenarios({**cuda, "device_type": "a100"})], 2)


def test_a_device_that_only_the_nodes_know_is_refused_where_there_is_none(
    program: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    without = read_machine().model_copy(update={"gpus": ()})
    monkeypatch.setattr(node_resources, "read_machine", lambda: without)
    name = program.write(resources={"devices": 2})
    done = call("run", name, *SLURM, "--dry-run")
    assert done.code == 2
    assert "resources.device is auto" in done.err
    assert "--device cuda" in done.err
    done = call("run", name, *SLURM, "--dry-run", "--device", "cuda")
    assert "#SBATCH --gpus-per-node=2" in done.out.splitlines()
    done = call("run", name, *SLURM, "--dry-run", "--set", "launcher.gres=gpu:2")
    assert "#SBATCH --gres=gpu:2" in done.out.splitlines()

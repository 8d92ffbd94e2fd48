"""`torchrun` and `accelerate`: agents for the session, a fresh process for each run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.program import call
from faults.program import Finished, wait_for
from launched import PROGRAM, Launched

from accel_bench import Status

CPU_CONFIGURATION = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "MULTI_CPU",
    "num_machines": 1,
    "num_processes": 2,
    "mixed_precision": "no",
    "use_cpu": True,
}
"""File written by `accelerate config` for two processes on CPUs."""


def check_two_ranks(done: Finished) -> None:
    """Check that both ranks of each run have ended well, and leave nothing behind."""
    assert done.code == 0, done.err
    assert isinstance(done.program, Launched)
    for result in done.results:
        assert result.status is Status.OK, result.reasons
        assert [rank.rank for rank in result.ranks] == [0, 1]
        assert [node.rank for node in result.nodes] == [0, 1]
        assert result.exits == ("exit 0", "exit 0")
        assert (done.program.results_folder / result.folder / "rank1.log").exists()
    assert done.program.left_behind() == []
    assert done.program.ranks_left() == []


@pytest.mark.parametrize(
    ("launcher", "stacks"), [("torchrun", ("baseline", "other")), ("accelerate", ("baseline",))]
)
def test_all_runs_of_a_session_share_the_agents(
    program: Launched, launcher: str, stacks: tuple[str, ...]
) -> None:
    file = program.write(stacks={name: [] for name in stacks})
    options = ("--set", f"launcher.use={launcher}", "-q", "--oversubscribe")
    done = program.call("run", file, *options)
    assert len(done.results) == len(stacks)
    check_two_ranks(done)


@pytest.mark.release
def test_ranks_of_accelerate_train_by_gloo(program: Launched) -> None:
    options = ("--set", "launcher.use=accelerate", "-q", "--oversubscribe")
    done = program.call("run", program.write_training(), *options)
    check_two_ranks(done)
    (result,) = done.results
    assert [rank.effective.world_size for rank in result.ranks] == [2, 2]
    assert [rank.effective.threads for rank in result.ranks] == [1, 1]


@pytest.mark.release
def test_accelerate_that_starts_one_process_for_two_is_refused_at_once(program: Launched) -> None:
    (program.folder / "cpu.yaml").write_text(json.dumps(CPU_CONFIGURATION))
    options = ("--set", "launcher.use=accelerate", "--set", "launcher.config_file=cpu.yaml")
    done = program.call("run", program.write(), *options, "-q")
    assert done.code == 2
    assert "accelerate launch has started 1 process, and the scenario asks for 2" in done.err
    assert "take use_cpu out of launcher.config_file" in done.err
    assert program.results() == []
    assert program.left_behind() == []


def test_a_dry_run_prints_what_would_be_started(program: Launched) -> None:
    file = program.write()
    options = ("--dry-run", "--oversubscribe", "--set")
    torchrun = call("run", file, *options, "launcher.use=torchrun")
    assert torchrun.code == 0, torchrun.err
    assert "torch.distributed.run --nproc-per-node 2 --standalone" in torchrun.err
    accelerate = call("run", file, *options, "launcher.use=accelerate")
    assert accelerate.code == 0, accelerate.err
    assert '"num_processes": 2' in accelerate.err
    assert '"mixed_precision": "no"' in accelerate.err
    for done in (torchrun, accelerate):
        assert "-m accel_bench_cluster" in done.err


@pytest.mark.parametrize(
    ("launcher", "settings", "culprit"),
    [
        ("torchrun", ("resources.nodes=2",), "launcher.endpoint=HOST:PORT"),
        ("accelerate", ("resources.nodes=2",), "launcher.machine_rank"),
        ("torchrun", ("resources.nodes=2", "launcher.endpoint=here"), "'here' is no HOST:PORT"),
        ("accelerate", ("launcher.config_file=none.yaml",), "'none.yaml' is no file"),
    ],
)
def test_what_a_launcher_lacks_is_named(
    program: Launched, launcher: str, settings: tuple[str, ...], culprit: str
) -> None:
    pairs = [word for one in (f"launcher.use={launcher}", *settings) for word in ("--set", one)]
    done = call("run", program.write(), *pairs, "-q")
    assert done.code == 2
    assert culprit in done.err


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Two hosts in network namespaces, joined by one link."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need root and ip (Debian: iproute2)")
    names = tuple(f"ab{os.getpid()}{letter}" for letter in "ab")

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("link", "add", "va", "netns", names[0], "type", "veth", "peer", "vb", "netns", names[1])
        for number, (name, link) in enumerate(zip(names, ("va", "vb"), strict=True), 1):
            ip("-n", name, "address", "add", f"192.0.2.{number}/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")
        yield names[0], names[1]
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def start_on(
    program: Launched, hosts: tuple[str, str], number: int, *settings: str
) -> subprocess.Popen[str]:
    """Start the same command on one of the hosts, with its own hostname."""
    name = 'hostname "$0"; exec "$@"'
    inside = ["ip", "netns", "exec", hosts[number], "unshare", "--uts", "sh", "-c", name]
    address = f"192.0.2.{number + 1}"
    words = ["launcher.use=torchrun", "launcher.endpoint=192.0.2.1:29500", "resources.nodes=2"]
    words += [f"launcher.local_address={address}", "resources.devices=1", *settings]
    pairs = [word for one in words for word in ("--set", one)]
    command = [*inside, f"host-{number + 1}", *PROGRAM, "run", "scenario.yaml", "-q", *pairs]
    return program.start_command(command)


@pytest.mark.release
def test_torchrun_across_two_hosts_and_a_link_that_is_cut(
    program: Launched, hosts: tuple[str, str]
) -> None:
    program.write_training(resources={"device": "cpu", "threads": 1})
    other, first = (start_on(program, hosts, number) for number in (1, 0))
    done = program.finish(first)
    check_two_ranks(done)
    assert program.finish(other).code == 0
    (result,) = done.results
    assert {node.name for node in result.nodes} == {"host-1", "host-2"}
    assert {node.address for node in result.nodes} == {"192.0.2.1", "192.0.2.2"}
    assert {node.interface for node in result.nodes} == {"va", "vb"}
    assert all(node.link_megabits_per_second == 10_000 for node in result.nodes)
    assert [rank.effective.world_size for rank in result.ranks] == [2, 2]

    before = set(program.results_folder.glob("runs/*/*"))
    endless = ("measure.steps=15000", "measure.warmup=2")
    other, first = (start_on(program, hosts, number, *endless) for number in (1, 0))

    def pages() -> list[Path]:
        runs = set(program.results_folder.glob("runs/*/*")) - before
        return [page for run in runs for page in run.glob("rank*.heartbeat")]

    assert wait_for(lambda: len(pages()) == 2)
    assert wait_for(lambda: all(any(page.read_bytes()[:8]) for page in pages()))
    subprocess.run(["ip", "-n", hosts[1], "link", "set", "vb", "down"], check=True)
    done = program.finish(first)
    assert done.code == 1
    cut = done.results[-1]
    assert cut.status in (Status.FAILED, Status.TIMEOUT)
    lost = next(node.rank for node in cut.nodes if node.name == "host-2")
    assert f"rank {lost}: the connection to node host-2 (192.0.2.2) is lost" in cut.reasons[0]
    assert program.finish(other).code != 0
    assert program.left_behind() == []

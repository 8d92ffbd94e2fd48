"""A SLURM cluster of two nodes on this machine, in a network namespace of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from faults.program import wait_for

ADDRESS = "192.0.2.1"
"""Address of both nodes: SLURM resolves no names with a loopback alone."""

CONFIGURATION = """
ClusterName=bench
SlurmctldHost={host}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
AuthInfo=cred_expire=4
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
KillWait=2
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPort=6817
NodeName=n1 NodeHostname={host} NodeAddr={address} Port=17001 CPUs={cores} RealMemory=1024
NodeName=n2 NodeHostname={host} NodeAddr={address} Port=17002 CPUs={cores} RealMemory=2048
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "ip")


@dataclass
class Cluster:
    """A cluster that runs."""

    namespace: str
    variables: dict[str, str]

    def inside(self, *command: str) -> list[str]:
        """Return a command that runs where the cluster can be reached."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def call(self, *command: str) -> str:
        """Run a program of SLURM and return what it prints."""
        variables = {**os.environ, **self.variables}
        done = subprocess.run(
            self.inside(*command), env=variables, capture_output=True, text=True, check=False
        )
        return done.stdout


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Start a cluster and end it; skip the test where it cannot be started."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or os.geteuid():
        pytest.skip(f"needs root and {missing} (Debian: slurm-wlm, iproute2)")
    cluster = Cluster(f"slurm{os.getpid()}", {"SLURM_CONF": str(folder / "slurm.conf")})
    (folder / "state").mkdir()
    facts = {"host": socket.gethostname(), "address": ADDRESS, "cores": os.cpu_count()}
    text = CONFIGURATION.format(folder=folder, **facts)
    (folder / "slurm.conf").write_text(text, encoding="utf8")
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n", encoding="utf8")
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for words in (
            ("netns", "add", cluster.namespace),
            ("-n", cluster.namespace, "link", "set", "lo", "up"),
            ("-n", cluster.namespace, "address", "add", f"{ADDRESS}/32", "dev", "lo"),
        ):
            subprocess.run(["ip", *words], check=True)
        for daemon in (["slurmctld", "-D"], ["slurmd", "-D", "-N", "n1"], ["slurmd", "-DN", "n2"]):
            process = subprocess.Popen(
                cluster.inside(*daemon),
                env={**os.environ, **cluster.variables},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            daemons.append(process)
        idle = wait_for(lambda: cluster.call("sinfo", "-h", "-o", "%T %D").split() == ["idle", "2"])
        assert idle, [path.read_text()[-2000:] for path in folder.glob("*.log")]
        yield cluster
    finally:
        cluster.call("scancel", "--user=root")
        for process in reversed(daemons):
            process.terminate()
        for process in daemons:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        subprocess.run(["ip", "netns", "delete", cluster.namespace], check=False)

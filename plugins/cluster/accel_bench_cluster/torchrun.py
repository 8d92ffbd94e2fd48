"""The launchers `torchrun` and `accelerate`: start ranks by `torchrun` or `accelerate launch`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from accel_bench import (
    Allocation,
    Options,
    Scenario,
    hookimpl,
    python_command,
)
from accel_bench.errors import ScenarioError
from accel_bench_cluster.agents import AgentLauncher, Ended
from accel_bench_cluster.launched_agents import (
    agent_command,
    meeting_point,
    start_agents,
)
from accel_bench_cluster.node import free_port
from accel_bench_cluster.node_resources import largest, refuse_unequal


class TorchrunOptions(Options):
    """Options of `torchrun`: the nodes' addresses and the connection timeout."""

    endpoint: str | None = None
    """Rendezvous `HOST:PORT` of several nodes. The command is started on each node, and the node
    named HOST runs the session. Agents use the next port."""

    local_address: str | None = None
    """Address of this node, for machines whose name torchrun cannot resolve."""

    connect_seconds: float = Field(300.0, gt=0, le=86_400)
    """Seconds within which all nodes must connect."""


class Torchrun(AgentLauncher[TorchrunOptions]):
    """Starts the ranks by torchrun, on one node or on several.

    torchrun starts one agent per rank for the session. The agent starts its rank in a fresh process
    for each run.
    """

    @hookimpl
    def allocate_ranks(self, scenarios: Sequence[Scenario], dry_run: bool) -> Allocation:
        """Start torchrun and wait for its agents. On other nodes, wait for the session's end."""
        refuse_unequal(scenarios, "torchrun")
        nodes, devices = largest(scenarios)
        way_out = ", with a HOST among them; start the same command on each node"
        meeting = meeting_point("torchrun", nodes, self.options.endpoint, way_out)
        command = [*self.command(nodes, devices, meeting.is_parent), *agent_command()]
        if dry_run:
            print(subprocess.list2cmdline(command), file=sys.stderr)
            return Ended(None if meeting.is_parent else 0)
        seconds = self.options.connect_seconds
        return start_agents(command, meeting, (nodes, devices), seconds, ("torchrun", ""))

    def command(self, nodes: int, devices: int, is_parent: bool) -> list[str]:
        """Return the torchrun command of this node, up to the program that it starts.

        `devices` is the number of ranks per node. `is_parent` is True on the node of the
        rendezvous.
        """
        command = python_command("-m", "torch.distributed.run", "--nproc-per-node", str(devices))
        if nodes == 1:
            command += ["--standalone"]
        else:
            command += ["--nnodes", str(nodes), "--rdzv-backend", "c10d"]
            command += ["--rdzv-endpoint", str(self.options.endpoint)]
            command += ["--rdzv-id", "accel-bench", "--rdzv-conf", f"is_host={int(is_parent)}"]
        if self.options.local_address:
            command += ["--local-addr", self.options.local_address]
        return [*command, "--no-python"]


ONE_PROCESS = (
    "; with `use_cpu` accelerate starts one process, whatever num_processes says, unless MPI "
    "starts them: take use_cpu out of launcher.config_file, or use the launcher torchrun"
)
"""Hint in an error on a wrong number of processes, which `use_cpu` usually causes."""


class AccelerateOptions(Options):
    """Options of `accelerate`: its configuration, and the nodes' addresses."""

    config_file: str | None = None
    """Configuration file of accelerate; if null, a file is written for the scenario."""

    endpoint: str | None = None
    """Rendezvous `HOST:PORT` of several machines. The command is started on each machine, and the
    machine named HOST runs the session. Agents use the next port."""

    machine_rank: int = Field(0, ge=0)
    """Index of this machine among several."""

    connect_seconds: float = Field(300.0, gt=0, le=86_400)
    """Seconds within which all processes must connect."""


class Accelerate(AgentLauncher[AccelerateOptions]):
    """Starts the ranks by `accelerate launch`, with a given or generated configuration."""

    @hookimpl
    def allocate_ranks(self, scenarios: Sequence[Scenario], dry_run: bool) -> Allocation:
        """Start accelerate and wait for its agents. On other nodes, wait for the session's end."""
        refuse_unequal(scenarios, "accelerate")
        nodes, devices = largest(scenarios)
        way_out = " and launcher.machine_rank; start the command on each node"
        meeting = meeting_point("accelerate", nodes, self.options.endpoint, way_out)
        with tempfile.TemporaryDirectory(prefix="accel-bench-") as folder:
            written = Path(folder) / "accelerate.yaml"
            main = meeting.endpoint or ("127.0.0.1", free_port("127.0.0.1"))
            configuration = self.configuration(nodes, devices, main)
            written.write_text(json.dumps(configuration, indent=1), encoding="utf8")  # YAML too
            path = self.options.config_file or str(written)
            if not Path(path).is_file():
                raise ScenarioError(f"launcher.config_file: {path!r} is no file")
            command = python_command("-m", "accelerate.commands.launch", "--config_file", path)
            command += ["--no_python", *agent_command()]
            if dry_run:
                print(subprocess.list2cmdline(command), file=sys.stderr)
                print(Path(path).read_text(encoding="utf8"), file=sys.stderr)
                return Ended(None if meeting.is_parent else 0)
            seconds, names = self.options.connect_seconds, ("accelerate launch", ONE_PROCESS)
            return start_agents(command, meeting, (nodes, devices), seconds, names)

    def configuration(self, nodes: int, devices: int, main: tuple[str, int]) -> dict[str, Any]:
        """Return accelerate's configuration for a number of nodes with `devices` processes each.

        `main` is the host and port of the rendezvous. `MULTI_GPU` starts several processes, on CPUs
        too, since ranks get their device from the scenario.
        """
        several = nodes * devices > 1
        return {
            "compute_environment": "LOCAL_MACHINE",
            "distributed_type": "MULTI_GPU" if several else "NO",
            "num_machines": nodes,
            "machine_rank": self.options.machine_rank,
            "num_processes": nodes * devices,
            "main_process_ip": main[0],
            "main_process_port": main[1],
            "mixed_precision": "no",
            "dynamo_backend": "no",
            "rdzv_backend": "static",
            "same_network": True,
            "use_cpu": False,
        }

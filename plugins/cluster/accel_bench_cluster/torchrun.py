"""`torchrun`: starts the ranks by torchrun, on one node or on several."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from pydantic import Field

from accel_bench import (
    Allocation,
    Options,
    Scenario,
    hookimpl,
    python_command,
)
from accel_bench_cluster.agents import AgentLauncher, Ended
from accel_bench_cluster.places import largest
from accel_bench_cluster.started import (
    agent_command,
    meeting_point,
    start_agents,
)


class TorchrunOptions(Options):
    """Address at which the nodes meet, and torchrun's settings."""

    endpoint: str | None = None
    """`HOST:PORT` at which several nodes meet; the command is started on each of them, and the node
    that HOST names is the parent. The agents use the port after it."""

    local_address: str | None = None
    """Address of this node, where torchrun does not find it by the machine's name."""

    connect_seconds: float = Field(300.0, gt=0, le=86_400)
    """How long the nodes may take to find one another."""


class Torchrun(AgentLauncher[TorchrunOptions]):
    """Starts the ranks by torchrun, on one node or on several.

    torchrun starts an agent for each rank once for the session; an agent starts its rank in a fresh
    process for each run.
    """

    @hookimpl
    def allocate_ranks(self, scenarios: Sequence[Scenario], dry_run: bool) -> Allocation:
        """Start torchrun and wait for its agents; on other nodes, until the session has ended."""
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
        """Return the command of torchrun on this node, up to the program that it starts."""
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

"""`env`: takes the processes over that torchrun, MPI, SLURM or a platform has started."""

from __future__ import annotations

import os
import socket
import zlib
from collections.abc import Sequence

from pydantic import Field

from accel_bench import (
    Allocation,
    Options,
    Placement,
    Scenario,
    hookimpl,
    read_placement,
)
from accel_bench.errors import ScenarioError
from accel_bench_cluster.agent import end_on_signals, ranks_of, run_agent
from accel_bench_cluster.agents import AgentLauncher, Agents, Ended
from accel_bench_cluster.node_resources import largest, wrong_size
from accel_bench_cluster.wire import shared_secret


class EnvOptions(Options):
    """Address at which the other processes find rank 0."""

    address: str | None = None
    """Name or address of the machine of rank 0; null takes what the launcher says."""

    port: int | None = Field(None, ge=1, le=65535)
    """Port at which rank 0 awaits the others; null takes the one after the launcher's own."""

    connect_seconds: float = Field(120.0, gt=0, le=86_400)
    """How long the processes may take to find one another."""


class Env(AgentLauncher[EnvOptions]):
    """Takes over the processes that torchrun, MPI, SLURM or a platform has started.

    Rank 0 is the parent. Every other process becomes an agent, which starts each of its ranks in a
    fresh process.
    """

    @hookimpl
    def allocate_ranks(self, scenarios: Sequence[Scenario], dry_run: bool) -> Allocation | None:
        """Join the processes; return in all but the first when the session has ended."""
        nodes, devices = largest(scenarios)
        placement = read_placement(os.environ)
        check_placement(placement, nodes, devices)
        ranks = ranks_of(placement, devices)
        is_parent = placement is None or placement.rank == 0
        if dry_run:
            return Ended(None if is_parent else 0)
        address = self._address(placement)
        if not is_parent:
            end_on_signals()
            return Ended(run_agent(address, shared_secret(), ranks, self.options.connect_seconds))
        remote = ranks["size"] > len(ranks["ranks"])
        agents = Agents(("", address[1]) if remote else ("127.0.0.1", 0), shared_secret())
        agents.add_parent(ranks)
        agents.gather(nodes, devices, self.options.connect_seconds)
        return agents

    def _address(self, placement: Placement | None) -> tuple[str, int]:
        """Return where the parent is. Raises ScenarioError where the launcher does not say."""
        if placement is None:
            return "127.0.0.1", 0
        host = self.options.address or placement.address
        on_one_node = placement.nodes == 1 or placement.local_size == placement.size
        if not host and on_one_node:
            host = "127.0.0.1"
        if not host:
            raise ScenarioError(
                f"{placement.launcher} does not say where rank 0 is: set MASTER_ADDR in all "
                "processes, or launcher.address, to the name or address of its machine"
            )
        port = self.options.port or (placement.port + 1 if placement.port else job_port())
        return host, port


def job_port() -> int:
    """Return a port that all processes of a job work out alike, where the launcher has none."""
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE", "SKYPILOT_TASK_ID", "DSTACK_RUN_ID")
    text = " ".join(os.environ.get(name, "") for name in names)
    return 20_000 + zlib.crc32(text.encode()) % 10_000


def check_placement(placement: Placement | None, nodes: int, devices: int) -> None:
    """Refuse to be another number of processes than the scenario asks for. Raises ScenarioError."""
    if placement is None:
        if nodes * devices > 1:
            raise ScenarioError(
                f"launcher env: this is one process, since no launcher has set its variables, and "
                f"the scenario asks for {nodes * devices}; start it by torchrun, mpirun or srun, "
                "or use the launcher local"
            )
        return
    if not placement.per_node and placement.size != nodes * devices:
        raise ScenarioError(wrong_size(placement.launcher, placement.size, nodes * devices))
    if placement.nodes is not None and placement.nodes != nodes:
        raise ScenarioError(
            f"{placement.launcher} runs on {placement.nodes} nodes, and resources.nodes is "
            f"{nodes}; let both be the same"
        )
    if placement.local_size is not None and placement.local_size != devices:
        node = f"processes on this node ({socket.gethostname()})"
        what = "devices on each node" if placement.per_node else node
        raise ScenarioError(
            f"{placement.launcher} has {placement.local_size} {what}, and resources.devices is "
            f"{devices}; let both be the same, on every node"
        )

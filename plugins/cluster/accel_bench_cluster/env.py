"""The launcher `env`: run ranks under processes of torchrun, MPI, SLURM or a platform."""

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
from accel_bench_cluster.node_resources import devices_of_nodes, refuse_unequal, wrong_size
from accel_bench_cluster.wire import shared_secret


class EnvOptions(Options):
    """Options of `env`: the address at which rank 0 is reached."""

    address: str | None = None
    """Name or address of the machine of rank 0; null reads it from the launcher's variables."""

    port: int | None = Field(None, ge=1, le=65535)
    """Port of rank 0's machine; null is the launcher's own port plus 1."""

    connect_seconds: float = Field(120.0, gt=0, le=86_400)
    """Seconds within which all processes must connect."""


class Env(AgentLauncher[EnvOptions]):
    """Takes over the processes that torchrun, MPI, SLURM or a platform has started.

    Rank 0 is the parent, which runs the session. Each other process becomes an agent, which starts
    its rank in a fresh process for each run.
    """

    @hookimpl
    def allocate_ranks(self, scenarios: Sequence[Scenario], dry_run: bool) -> Allocation | None:
        """Connect the processes; ranks other than 0 serve as agents until the session ends."""
        devices = devices_of_nodes(scenarios)
        placement = read_placement(os.environ)
        if placement and placement.per_node:
            refuse_unequal(scenarios, "env")
        check_placement(placement, devices)
        ranks = ranks_of(placement, max(devices))
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
        agents.gather(len(devices), devices, self.options.connect_seconds)
        return agents

    def _address(self, placement: Placement | None) -> tuple[str, int]:
        """Return the host and port at which the parent listens. Raises ScenarioError if neither
        options nor the launcher's variables name the host."""
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
    """Return a port number derived from the job's ids, the same in all processes of the job."""
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE", "SKYPILOT_TASK_ID", "DSTACK_RUN_ID")
    text = " ".join(os.environ.get(name, "") for name in names)
    return 20_000 + zlib.crc32(text.encode()) % 10_000


def check_placement(placement: Placement | None, devices: Sequence[int]) -> None:
    """Raise ScenarioError if a launcher's number of nodes or processes differs from the scenario's.

    `placement` is the launcher's, or None without a launcher. `devices` is the number of ranks of
    each node.
    """
    nodes, size = len(devices), sum(devices)
    if placement is None:
        if size > 1:
            raise ScenarioError(
                f"launcher env: this is one process, since no launcher has set its variables, and "
                f"the scenario asks for {size}; start it by torchrun, mpirun or srun, "
                "or use the launcher local"
            )
        return
    if not placement.per_node and placement.size != size:
        raise ScenarioError(wrong_size(placement.launcher, placement.size, size))
    if placement.nodes is not None and placement.nodes != nodes:
        raise ScenarioError(
            f"{placement.launcher} runs on {placement.nodes} nodes, and resources.nodes is "
            f"{nodes}; let both be the same"
        )
    if placement.local_size is not None and placement.local_size not in devices:
        alike = len({*devices}) == 1
        node = f"processes on this node ({socket.gethostname()})"
        what = "devices on each node" if placement.per_node else node
        raise ScenarioError(
            f"{placement.launcher} has {placement.local_size} {what}, and resources.devices"
            f"{'' if alike else '_by_node'} is {devices[0] if alike else [*devices]}; let both be "
            "the same, on every node"
        )

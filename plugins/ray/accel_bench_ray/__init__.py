"""`ray`: starts the ranks on nodes of a Ray cluster, which its placement groups reserve."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict

from accel_bench_cluster import AgentLauncher, Ended, largest, type_of_device
from pydantic import Field

from accel_bench import (
    Allocation,
    Options,
    Scenario,
    hookimpl,
    python_command,
    read_machine,
)
from accel_bench.errors import ScenarioError

from .groups import RayGroups
from .request import Request


class RayOptions(Options):
    """Which cluster, and what of it."""

    address: str | None = Field(None, pattern=r"^[^\s]+$")
    """Address of the cluster, `HOST:PORT`, as `ray.init` takes it; `local` starts Ray on this
    machine for the session; null takes RAY_ADDRESS, or the cluster that this machine is part of."""

    cpus: int | None = Field(None, ge=1, le=1_000_000)
    """CPUs that each rank reserves; null reserves one beside each GPU, and without GPUs the whole
    node for its ranks."""

    at_once: int = Field(1, ge=1, le=1000)
    """Sweep points that run at the same time, each on nodes of its own."""

    connect_seconds: float = Field(300.0, gt=0, le=86_400)
    """How long the cluster may take to reserve what is asked for, and to replace what is lost."""


class Ray(AgentLauncher[RayOptions]):
    """Starts the ranks on nodes of a Ray cluster, which its placement groups reserve.

    An actor on each node is there for the whole session, and starts each rank of a run in a fresh
    process: Ray's own workers keep what earlier work has left in them.
    """

    checks_nodes = True

    @hookimpl
    def allocate_ranks(self, scenarios: Sequence[Scenario], dry_run: bool) -> Allocation:
        """Reserve nodes and wait for the agents of their actors."""
        if dry_run:
            command = self.command(self.request(scenarios, (0,) * self.options.at_once))
            print(subprocess.list2cmdline(command), file=sys.stderr)
            return Ended(None)
        seconds = self.options.connect_seconds
        groups = RayGroups(self.options.at_once, seconds)
        try:
            groups.start(self.command(self.request(scenarios, groups.ports)), largest(scenarios))
        except BaseException:
            groups.close()
            raise
        return groups

    def request(self, scenarios: Sequence[Scenario], ports: Sequence[int]) -> Request:
        """Return what to reserve. Raises ScenarioError where it cannot be one placement group."""
        nodes, devices = largest(scenarios)
        options = self.options
        address = options.address or os.environ.get("RAY_ADDRESS") or "auto"
        if "://" in address:
            raise ScenarioError(
                f"launcher ray: address {address!r} is that of a remote client; run this on a node "
                "of the cluster, with the HOST:PORT of its head, or without any address"
            )
        device_type = type_of_device(scenarios, "ray", "placement group")
        return Request(
            address=address,
            nodes=nodes,
            devices=devices,
            device=kind_of_device(scenarios, device_type),
            device_type=device_type,
            cpus=options.cpus,
            seconds=options.connect_seconds,
            parent=os.getpid(),
            ports=tuple(ports),
        )

    def command(self, request: Request) -> list[str]:
        """Return the command of the program that reserves, and starts the actors."""
        return python_command("-m", "accel_bench_ray.driver", json.dumps(asdict(request)))


def kind_of_device(scenarios: Sequence[Scenario], device_type: str | None) -> str:
    """Return `cuda`, `cpu`, or `auto` where only the cluster's nodes can say."""
    wanted = {one.resources.device for one in scenarios}
    if "cuda" in wanted or device_type:
        return "cuda"
    if "auto" in wanted:
        return "auto" if read_machine().device == "cpu" else "cuda"
    return "cpu"

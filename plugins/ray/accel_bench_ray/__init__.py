"""The launcher `ray`: start the ranks on nodes of a Ray cluster, reserved by placement groups."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from accel_bench_cluster import (
    AgentLauncher,
    Ended,
    StartedAgents,
    devices_of_nodes,
    largest,
    memory_of_nodes,
    new_secret,
    type_of_device,
)
from pydantic import Field

from accel_bench import (
    Allocation,
    Job,
    Options,
    RankProcess,
    Scenario,
    hookimpl,
    python_command,
    read_machine,
)
from accel_bench.errors import AccelBenchError, ScenarioError

SLACK_SECONDS = 30.0
"""Seconds that the parent waits beyond `connect_seconds`, for the actors to start."""


class RayOptions(Options):
    """Options of `ray`: the cluster, and the resources to reserve there."""

    address: str | None = Field(None, pattern=r"^[^\s]+$")
    """Address of the cluster, `HOST:PORT`, as in `ray.init`; `local` starts Ray on this machine for
    the session; null takes RAY_ADDRESS, or the cluster that this machine is part of."""

    cpus: int | None = Field(None, ge=1, le=1_000_000)
    """Number of CPUs reserved for each rank; null is one beside each GPU, and without GPUs an equal
    part of the node."""

    at_once: int = Field(1, ge=1, le=1000)
    """Number of sweep points that run concurrently, each on its own nodes."""

    connect_seconds: float = Field(300.0, gt=0, le=86_400)
    """Seconds within which the cluster must reserve the resources, or replace a lost actor."""


class Ray(AgentLauncher[RayOptions]):
    """Starts the ranks on nodes of a Ray cluster, which its placement groups reserve.

    An actor on each node lasts for the whole session, and starts each rank of a run in a fresh
    process: Ray's own workers retain state of earlier work.
    """

    checks_nodes = True

    @hookimpl
    def allocate_ranks(self, scenarios: Sequence[Scenario], dry_run: bool) -> Allocation:
        """Return reserved nodes with connected agents; with `dry_run`, only print the command.

        `scenarios` are all scenarios of the session.
        """
        if dry_run:
            command = self.command(self.request(scenarios, (0,) * self.options.at_once))
            print(subprocess.list2cmdline(command), file=sys.stderr)
            return Ended(None)
        seconds = self.options.connect_seconds
        groups = RayGroups(self.options.at_once, seconds)
        try:
            groups.start(
                self.command(self.request(scenarios, groups.ports)), devices_of_nodes(scenarios)
            )
        except BaseException:
            groups.close()
            raise
        return groups

    def request(self, scenarios: Sequence[Scenario], ports: Sequence[int]) -> Request:
        """Return the reservation of a session for these scenarios; `ports` are the parent's ports.

        Raises ScenarioError if one group of nodes cannot serve them, or if the address is that of a
        remote client of Ray.
        """
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
            devices_of_nodes=devices_of_nodes(scenarios),
            device=kind_of_device(scenarios, device_type),
            device_type=device_type,
            cpus=options.cpus,
            memory_gib=memory_of_nodes(scenarios),
            seconds=options.connect_seconds,
            parent=os.getpid(),
            ports=tuple(ports),
        )

    def command(self, request: Request) -> list[str]:
        """Return the command of the program that reserves nodes and starts the actors."""
        return python_command("-m", "accel_bench_ray.driver", json.dumps(asdict(request)))


def kind_of_device(scenarios: Sequence[Scenario], device_type: str | None) -> str:
    """Return the scenarios' device: `cuda`, `cpu`, or `auto` if only the nodes can determine it.

    `device_type` is the model of the devices; None for any.
    """
    wanted = {scenario.resources.device for scenario in scenarios}
    if "cuda" in wanted or device_type:
        return "cuda"
    if "auto" in wanted:
        return "auto" if read_machine().device == "cpu" else "cuda"
    return "cpu"


@dataclass(frozen=True)
class Request:
    """Reservation of nodes for a session, with the addresses of the parent."""

    address: str
    """Address of the cluster; `local` starts a cluster on this machine."""

    nodes: int

    devices: int
    """Largest number of ranks on one node."""

    devices_of_nodes: tuple[int, ...]
    """Number of ranks on each node of a group, in order."""

    device: str
    """Device type: `cuda`, `cpu`, or `auto` if neither parent nor scenario determines it."""

    device_type: str | None
    """Model of the devices, such as `l4`."""

    cpus: int | None
    """Number of CPUs reserved for each rank; None for the default."""

    memory_gib: tuple[int | None, int | None]
    """GiB of host memory reserved on the first node of a group, and on each other node."""

    seconds: float
    """Timeout of the reservation in seconds."""

    parent: int
    """Process id of the parent; the program ends when the parent ends."""

    ports: tuple[int, ...]
    """Ports of the parent, one for each concurrent group of nodes."""


class RayAgents(StartedAgents):
    """The agents of one group of nodes, whose lost actors are replaced."""

    def __init__(self, secret: bytes, seconds: float, first: RayAgents | None) -> None:
        """Prepare the agents of one group of nodes, which share `secret`.

        They wait up to `seconds` for replacements of lost actors. `first` are the agents of the
        first group, which has started Ray's program for all groups; None for that group itself.
        """
        super().__init__(("", 0), secret, "Ray")
        self._seconds = self._patience = seconds
        self._first = first
        self._interrupted = False

    def is_ready(self) -> bool:
        """Return whether all actors are connected, after waiting for replacements of lost ones.

        After a timeout, later calls do not wait, until a call finds all actors connected.
        """
        try:
            self.replace_lost(self._patience)
        except ConnectionError:
            self._patience = 0.0
            return False
        self._patience = self._seconds
        return True

    def launch(self, job: Job) -> list[RankProcess]:
        """Start the ranks of a job once all actors are connected. Raises OSError if one is missing.

        After a timeout, later jobs do not wait. Raises KeyboardInterrupt at the session's end.
        """
        if not self.is_ready() and self._interrupted:
            raise KeyboardInterrupt
        return super().launch(job)

    def check(self) -> None:
        """Raise AccelBenchError if missing agents cannot connect any more, or the session ends."""
        if self._interrupted:
            raise AccelBenchError("the session ends")
        if self._first is not None:
            self._first.check()
        super().check()

    def interrupt(self) -> None:
        """Stop waiting for agents, since the session ends."""
        self._interrupted = True


class RayGroups:
    """Allocation of a session: one group of nodes for each concurrent sweep point."""

    exit_code: int | None = None

    def __init__(self, number: int, seconds: float) -> None:
        """Listen for agents of `number` groups; wait `seconds` for replacements of lost actors."""
        self._seconds = seconds
        secret = new_secret()
        self._first = RayAgents(secret, seconds, None)
        others = [RayAgents(secret, seconds, self._first) for _ in range(1, number)]
        self.places = [self._first, *others]

    @property
    def ports(self) -> tuple[int, ...]:
        """Return the parent's ports to which the groups' agents connect."""
        return tuple(place.port for place in self.places)

    @property
    def cores(self) -> int:
        """Return the number of cores that ranks may use on the smallest node."""
        return min(place.cores for place in self.places)

    def start(self, command: Sequence[str], devices: Sequence[int]) -> None:
        """Run `command`, which starts the agents, and wait for them.

        `devices` has the number of ranks of each node of a group.
        """
        self._first.start(command, "")
        for place in self.places:
            place.gather(len(devices), devices, self._seconds + SLACK_SECONDS)

    def interrupt(self) -> None:
        """Stop waiting for agents, since the session ends."""
        for place in self.places:
            place.interrupt()

    def close(self) -> None:
        """End the agents, then the program that holds the reservation."""
        with contextlib.ExitStack() as closing:
            for place in self.places:
                closing.callback(place.close)

"""`ray`: starts the ranks on nodes of a Ray cluster, which its placement groups reserve."""

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
    largest,
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
"""How much longer than Ray's placement the parent waits: actors start after it."""


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


@dataclass(frozen=True)
class Request:
    """Nodes to reserve for a session, and where their agents find the parent."""

    address: str
    """Address of the cluster; `local` starts one."""

    nodes: int

    devices: int
    """Ranks on each node."""

    device: str
    """`cuda`, `cpu`, or `auto` where the parent has no GPU and the scenario does not say."""

    device_type: str | None
    """Type of the devices, such as `l4`."""

    cpus: int | None
    """CPUs that each rank reserves."""

    seconds: float
    """How long the reservation may take."""

    parent: int
    """Process id of the parent, with which the program ends."""

    ports: tuple[int, ...]
    """Ports of the parent, one for each group of all these nodes."""


class RayAgents(StartedAgents):
    """The agents of one group of nodes. Where an actor dies, another one takes its place."""

    def __init__(self, secret: bytes, seconds: float, first: RayAgents | None) -> None:
        """`first` are the agents whose program keeps these too, None for those; a lost actor is
        awaited for so many seconds."""
        super().__init__(("", 0), secret, "Ray")
        self._seconds = self._patience = seconds
        self._first = first
        self._interrupted = False

    def is_ready(self) -> bool:
        """Return whether all actors are there, after waiting for those that replace others.

        Where they have not come, they are not awaited again until all are there.
        """
        try:
            self.replace_lost(self._patience)
        except ConnectionError:
            self._patience = 0.0
            return False
        self._patience = self._seconds
        return True

    def launch(self, job: Job) -> list[RankProcess]:
        """Start the ranks of a job, once all actors are there. Raises OSError where they are not.

        A group that is lost is not awaited again. Raises KeyboardInterrupt where the session ends.
        """
        if not self.is_ready() and self._interrupted:
            raise KeyboardInterrupt
        return super().launch(job)

    def check(self) -> None:
        """Raise AccelBenchError when no agents can come any more."""
        if self._interrupted:
            raise AccelBenchError("the session ends")
        if self._first is not None:
            self._first.check()
        super().check()

    def interrupt(self) -> None:
        """Wait for no agents any more."""
        self._interrupted = True


class RayGroups:
    """The groups of nodes of a session: an allocation whose places share no node."""

    exit_code: int | None = None

    def __init__(self, number: int, seconds: float) -> None:
        """Listen for the agents of so many groups, whose lost actors are awaited that long."""
        self._seconds = seconds
        secret = new_secret()
        self._first = RayAgents(secret, seconds, None)
        others = [RayAgents(secret, seconds, self._first) for _ in range(1, number)]
        self.places = [self._first, *others]

    @property
    def ports(self) -> tuple[int, ...]:
        """Return where the agents of each group are awaited."""
        return tuple(place.port for place in self.places)

    @property
    def cores(self) -> int:
        """Return the cores that the ranks of a node may use, on the smallest node."""
        return min(place.cores for place in self.places)

    def start(self, command: Sequence[str], shape: tuple[int, int]) -> None:
        """Start the program, and wait for the agents of nodes and devices of this shape."""
        self._first.start(command, "")
        for place in self.places:
            place.gather(*shape, self._seconds + SLACK_SECONDS)

    def interrupt(self) -> None:
        """Wait for no agents any more."""
        for place in self.places:
            place.interrupt()

    def close(self) -> None:
        """End the agents, then the program."""
        with contextlib.ExitStack() as closing:
            for place in self.places:
                closing.callback(place.close)

"""Agents of a session: processes on its nodes, by which the parent starts each run's ranks."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from accel_bench import (
    Job,
    LocalProcess,
    NodePlace,
    Options,
    Plugin,
    RankProcess,
    hookimpl,
    rank_environment,
)
from accel_bench.errors import AccelBenchError, ScenarioError
from accel_bench_cluster.agent import set_interface
from accel_bench_cluster.listener import Listener, node_of
from accel_bench_cluster.node import (
    describe_node,
    described_at,
    free_port,
)
from accel_bench_cluster.node_resources import (
    cores_of,
    device_index,
    refuse_node,
    threads_of,
    wrong_size,
)
from accel_bench_cluster.remote import (
    ANSWER_SECONDS,
    Agent,
    PreparedNodes,
    RemoteProcess,
)
from accel_bench_cluster.wire import Channel

PUMP_SECONDS = 0.05
"""Minimum interval in seconds between two readings of messages when handles of ranks are polled."""

OptionsT = TypeVar("OptionsT", bound=Options)

RENDEZVOUS = "ACCEL_BENCH_RENDEZVOUS"
"""Environment variable with the rendezvous address of the ranks."""


@dataclass
class Ended:
    """`Allocation` without agents, for a dry run or if other processes run the session.

    The command ends with `exit_code`, or goes on without ranks if that is None.
    """

    exit_code: int | None
    cores: int | None = None

    def close(self) -> None:
        """Do nothing, since there is no process to end."""


class Agents:
    """`Allocation` of a session's ranks: all agents of the session."""

    exit_code: int | None = None

    def __init__(
        self, address: tuple[str, int], secret: bytes, launcher: str = "", hint: str = ""
    ) -> None:
        """Listen for agents at the host and port `address`. Raises AccelBenchError if that fails.

        Error messages name the launching program by `launcher`, and add `hint` if the number of
        agents is wrong.
        """
        self.launcher, self.hint = launcher, hint
        self._listener = Listener(address, secret)
        self._agents: list[Agent] = []
        self._pumped = 0.0

    @property
    def cores(self) -> int:
        """Number of cores that a node's processes may use together, on the node with the fewest."""
        return min(cores_of([agent for agent, _ in places]) for places in self.nodes().values())

    @property
    def port(self) -> int:
        """Port at which agents connect."""
        return self._listener.port

    def add_parent(self, ranks: dict[str, Any]) -> None:
        """Add this process as an agent for its own machine's ranks, given as `ranks_of` returns
        them."""
        self._add(None, ranks, describe_node("127.0.0.1"))

    def gather(self, nodes: int, devices: int | Sequence[int], seconds: float) -> None:
        """Wait until the agents of all ranks are connected; close all connections on failure.

        `devices` is the number of ranks of each node, or one number for all. Raises AccelBenchError
        if ranks are missing after `seconds`, or if agents belong to another allocation.
        """
        sizes = [devices] * nodes if isinstance(devices, int) else devices
        try:
            self._await(sum(sizes), seconds)
            self.choose(sizes)
        except BaseException:
            self.close()
            raise

    def replace_lost(self, seconds: float) -> None:
        """Wait until new agents have replaced all lost agents; return at once if none is lost.

        Not every launcher starts new agents. Raises ConnectionError if some are still missing after
        `seconds`.
        """
        self.pump(0)
        lost, size = [agent for agent in self._agents if agent.lost], len(self._ranks())
        if not lost:
            return
        self._agents = [agent for agent in self._agents if not agent.lost]
        try:
            self._await(size, seconds)
        except AccelBenchError as error:
            here = self._ranks()
            missing = [agent for agent in lost if not here & {rank for rank, _ in agent.ranks}]
            self._agents += missing
            raise ConnectionError(f"{missing[0].lost}, and no other has come: {error}") from error

    def check(self) -> None:
        """Raise AccelBenchError if missing agents cannot connect any more.

        This base class cannot know that, and never raises.
        """

    def launch(self, job: Job) -> list[RankProcess]:
        """Start the ranks of a job on the session's first nodes; return their handles by rank.

        A preparation job starts once on each node. Raises OSError if an agent is lost, and
        ScenarioError if a node lacks memory or devices.
        """
        self.pump(0)
        resources = job.experiment.scenario.resources
        if job.purpose == "prepare":
            return [self._prepare(job)]
        sizes = [resources.devices_of(node) for node in range(resources.nodes)]
        places = self.choose(sizes)
        agents = [agent for agent, _ in places]
        for rank, agent in enumerate(agents):
            if agent.lost:
                raise ConnectionError(f"rank {rank}: {agent.lost}")
        for number, size in enumerate(sizes):
            first = sum(sizes[:number])
            refuse_node(agents[first : first + size], number, resources)
        local_sizes = [size for size in sizes for _ in range(size)]
        meeting, threads = self._rendezvous(agents), threads_of(agents)
        started: list[RankProcess] = []
        with contextlib.ExitStack() as undo:
            for rank, (agent, local_rank) in enumerate(places):
                index = device_index(agent, local_rank, self._agents)
                place = NodePlace(index, local_sizes[rank], threads)
                started.append(self._start(job, rank, agent, place, meeting))
                undo.callback(started[-1].sweep)
            undo.pop_all()
        return started

    def choose(self, devices: Sequence[int]) -> list[tuple[Agent, int]]:
        """Return the agent and the local rank of each rank, counted node by node.

        `devices` is the number of ranks of each node. Raises AccelBenchError if there are too few
        nodes or agents.
        """
        present = list(self.nodes().values())
        nodes = list(zip(present, devices, strict=False))
        if len(nodes) < len(devices) or any(len(places) < size for places, size in nodes):
            here = ", ".join(f"{places[0][0].name}: {len(places)}" for places in present)
            alike = len({*devices}) == 1
            each = f"{devices[0]} processes each" if alike else f"{[*devices]} processes"
            unequal = alike and len({*map(len, present)}) > 1
            raise AccelBenchError(
                f"resources ask for {len(devices)} nodes with {each}, and the launcher "
                f"has started on {len(present)} ({here}); let both be the same"
                + (", with as many processes on each node" if unequal else "")
            )
        return [place for places, size in nodes for place in places[:size]]

    def nodes(self) -> dict[str, list[tuple[Agent, int]]]:
        """Return each node's agents with their local ranks, by the node's key, in the order of the
        ranks."""
        places: dict[str, list[tuple[Agent, int]]] = {}
        every = [(rank, local, agent) for agent in self._agents for rank, local in agent.ranks]
        for _, local_rank, agent in sorted(every, key=lambda place: place[0]):
            places.setdefault(agent.key, []).append((agent, local_rank))
        return places

    def node_names(self) -> list[str]:
        """Return the name and address of each node as one text, in the order of the ranks."""
        return [places[0][0].name for places in self.nodes().values()]

    def pump(self, seconds: float) -> None:
        """Handle messages of all agents as soon as some arrive; wait for at most `seconds`.

        If `seconds` is 0, it does not wait, and does nothing if the last call is less than
        `PUMP_SECONDS` ago.
        """
        now = time.monotonic()
        if not seconds and now - self._pumped < PUMP_SECONDS:
            return
        channels = {
            agent.channel: agent for agent in self._agents if agent.channel and not agent.lost
        }
        for channel in select.select(list(channels), [], [], seconds)[0]:
            channels[channel].receive()
        self._pumped = time.monotonic()

    def close(self) -> None:
        """End all agents."""
        for agent in self._agents:
            if agent.channel and not agent.lost:
                agent.send({"kind": "end", "code": 0})
                agent.channel.close()
        self._listener.close()

    def _ranks(self) -> set[int]:
        return {rank for agent in self._agents for rank, _ in agent.ranks}

    def _await(self, size: int, seconds: float) -> None:
        """Wait until agents for ranks 0 to `size` - 1 are connected. Raises AccelBenchError if
        ranks are missing after `seconds`."""
        until = time.monotonic() + seconds
        while missing := sorted(set(range(size)) - self._ranks()):
            self.check()
            if time.monotonic() > until:
                raise AccelBenchError(
                    f"ranks {', '.join(map(str, missing))} have not come to port {self.port} in "
                    f"{seconds:g} s{self._listener.refused}; see what their launcher prints, and "
                    "raise launcher.connect_seconds if they need longer"
                )
            if (come := self._listener.accept(until)) is None:
                continue
            channel, ranks = come
            if ranks["size"] != size:
                launcher = self.launcher or ranks["launcher"]
                channel.close()
                raise AccelBenchError(wrong_size(launcher, ranks["size"], size) + self.hint)
            self._add(channel, ranks, ranks["node"])

    def _add(
        self, channel: Channel | None, ranks: dict[str, Any], description: dict[str, Any]
    ) -> None:
        key = ranks["node_key"] or f"{description['name']}"
        places = [(int(rank), int(local_rank)) for rank, local_rank in ranks["ranks"]]
        agent = Agent(channel, description, key, places)
        if doubled := self._ranks() & {rank for rank, _ in places}:
            raise AccelBenchError(
                f"rank {min(doubled)} has come twice, the second time from {agent.name}; is the "
                "command started twice with the same address and port?"
            )
        self._agents.append(agent)

    def _rendezvous(self, agents: Sequence[Agent]) -> tuple[str, int] | None:
        """Return the address of rank 0's node and a free port there, or None for a single rank.

        Raises ConnectionError if the agent of rank 0 does not answer.
        """
        if len(agents) == 1:
            return None
        first = agents[0]
        others = [agent.channel for agent in self._agents if agent.channel and not agent.lost]
        address = str(first.description["address"])
        if address.startswith("127.") and others:
            # It is the parent's machine, which the other nodes reach by another address.
            addresses = [str(channel.socket.getsockname()[0]) for channel in others]
            address = next((host for host in addresses if not host.startswith("127.")), address)
        if first.channel is None:
            return address, free_port(address)
        first.port = None
        first.send({"kind": "port", "rank": 0})
        until = time.monotonic() + ANSWER_SECONDS
        while first.port is None and not first.lost and time.monotonic() < until:
            self.pump(until - time.monotonic())
        if first.port is None:
            raise ConnectionError(f"rank 0: {first.lost or 'its agent does not answer'}")
        return address, first.port

    def _start(
        self,
        job: Job,
        rank: int,
        agent: Agent,
        place: NodePlace,
        meeting: tuple[str, int] | None,
    ) -> RankProcess:
        """Start one rank of a job by an agent, and return its handle.

        `place` is the rank's device and share of the node; `meeting` is the host and port at which
        the ranks meet, or None for a single rank.
        """
        several_nodes = job.experiment.scenario.resources.nodes > 1
        address, port = meeting if meeting and rank == 0 else (agent.description["address"], None)
        variables = {} if meeting is None else {RENDEZVOUS: f"tcp://{_joined(*meeting)}"}
        if agent.channel is None:
            environment = {**rank_environment(job, rank, place), **variables}
            if several_nodes and meeting:
                set_interface(environment, meeting[0])
            own = LocalProcess(job, rank, environment)
            own.node = node_of(described_at(agent.description, address), rank, port)
            return own
        process = RemoteProcess(self.pump, agent, job, rank)
        process.node = node_of(agent.description, rank, port)
        message = {"place": asdict(place), "variables": variables}
        process.start({**message, "several_nodes": several_nodes})
        return process

    def _prepare(self, job: Job) -> RankProcess:
        """Start a preparation job once on each node that the job's runs use, and return one handle
        for all."""
        nodes = job.experiment.scenario.resources.nodes
        places = [places[0] for places in self.nodes().values()][:nodes]
        for agent, _ in places:
            if agent.lost:
                raise ConnectionError(agent.lost)
        processes: list[RankProcess] = []
        jobs: list[Job] = []
        with contextlib.ExitStack() as undo:
            for agent, local_rank in places:
                own_job = job
                if jobs:
                    folder = Path(job.folder) / f"{agent.description['name']}-{len(jobs)}"
                    folder.mkdir(mode=0o700)
                    own_job = job.model_copy(update={"folder": str(folder)})
                jobs.append(own_job)
                place = NodePlace(local_rank, 1, int(agent.description["cores"]))
                processes.append(self._start(own_job, 0, agent, place, None))
                undo.callback(processes[-1].sweep)
            undo.pop_all()
        return PreparedNodes(processes, jobs) if len(processes) > 1 else processes[0]


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def launch_on(allocation: Any, job: Job) -> list[RankProcess]:
    """Start the ranks of a job on the session's agents, and return their handles by rank.

    `allocation` is the result of the launcher's hook `allocate_ranks`. Raises ScenarioError if it
    has no agents.
    """
    if not isinstance(allocation, Agents):
        raise ScenarioError(
            "this launcher's processes belong to a whole session; run it by `accel-bench run`, or "
            "use the launcher local"
        )
    return allocation.launch(job)


class AgentLauncher(Plugin[OptionsT]):
    """Base class of launchers whose hook `allocate_ranks` returns `Agents` or `Ended`."""

    @hookimpl
    def launch_ranks(self, job: Job, allocation: Any) -> Sequence[RankProcess]:
        """Start the ranks of a job by the session's agents."""
        return launch_on(allocation, job)

"""Agents of a session: lost nodes, failing preparations, addresses and nodes."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from accel_bench_cluster import agent, launched_agents
from accel_bench_cluster.agent import contract, serve
from accel_bench_cluster.agents import Agents
from accel_bench_cluster.listener import Listener
from accel_bench_cluster.node import describe_node
from accel_bench_cluster.torchrun import ONE_PROCESS
from accel_bench_cluster.wire import Channel, prove_as_agent
from store.store_factory import make_experiment

from accel_bench import Job
from accel_bench.errors import AccelBenchError


class Peer(threading.Thread):
    """An agent that starts nothing, stores the messages it gets, and answers them."""

    def __init__(self, port: int, rank: int, size: int) -> None:
        super().__init__(daemon=True)
        self.rank, self.size = rank, size
        self.kinds: list[str] = []
        self.channel = Channel(socket.create_connection(("127.0.0.1", port)))
        self.start()

    def run(self) -> None:
        """Authenticate, send the first message, and answer until the connection ends."""
        prove_as_agent(self.channel, b"secret")
        name = "abc"[self.rank]
        ranks = {"ranks": [[self.rank, 0]], "size": self.size, "node_key": name, "launcher": ""}
        hello = {**ranks, "node": {**describe_node("127.0.0.1"), "name": name}}
        self.channel.send({"kind": "hello", "contract": contract()}, json.dumps(hello).encode())
        try:
            while True:
                self.channel.wait(None)
                for message, _ in self.channel.receive():
                    self._answer(message)
        except OSError:
            self.channel.close()

    def lose(self) -> None:
        """Close the connection."""
        self.channel.socket.shutdown(socket.SHUT_RDWR)

    def _answer(self, message: dict[str, Any]) -> None:
        self.kinds.append(message["kind"])
        rank = message.get("rank")
        if message["kind"] == "port":
            self.channel.send({"kind": "port", "rank": rank, "port": 1234})
        elif message["kind"] == "sweep":
            self.channel.send({"kind": "exit", "rank": rank, "code": -9})


class Nodes:
    """Agents of three nodes."""

    def __init__(self) -> None:
        self.agents = Agents(("127.0.0.1", 0), b"secret")
        self.peers = [Peer(self.agents.port, rank, 3) for rank in range(3)]
        self.agents.gather(3, 1, 10)

    def lose(self, number: int) -> None:
        """Lose a node, and notice it."""
        self.peers[number].lose()
        self.agents.pump(10)


def test_a_rank_keeps_no_larger_change_than_its_agent_relays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[Job] = []

    class Process:
        def __init__(self, job: Job, rank: int, environment: dict[str, str]) -> None:
            jobs.append(job)

        def sweep(self) -> None:
            pass

    monkeypatch.setattr(agent, "LocalProcess", Process)
    place = {"local_rank": 0, "local_size": 1, "threads": 1}
    message = {"rank": 0, "place": place, "variables": {}, "several_nodes": False}
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
    ):
        for most in (100, 2**40):
            payload = job_on(1, tmp_path, update_bytes=most).model_dump_json().encode()
            agent.HostedRank(Channel(ours), message, payload).close()
    assert [job.update_bytes for job in jobs] == [100, agent.MAXIMUM_FILE_BYTES]


def test_unequal_numbers_of_ranks_are_refused_with_the_nodes() -> None:
    agents = Agents(("127.0.0.1", 0), b"secret")
    for node, ranks in (("a", [[0, 0], [1, 1], [2, 2]]), ("b", [[3, 0]])):
        agents.add_parent({"ranks": ranks, "size": 4, "node_key": node})
    name = rf"{socket.gethostname()} \(127.0.0.1\)"
    with pytest.raises(AccelBenchError, match=rf"{name}: 3, {name}: 1\); .* on each node"):
        agents.gather(2, 2, 1)


def test_ranks_are_counted_node_by_node_where_nodes_differ() -> None:
    agents = Agents(("127.0.0.1", 0), b"secret")
    for node, ranks in (("a", [[0, 0], [1, 1], [2, 2]]), ("b", [[3, 0]])):
        agents.add_parent({"ranks": ranks, "size": 4, "node_key": node})
    agents.gather(2, [3, 1], 1)
    for sizes in ([3, 1], [2, 1]):
        chosen = [(agent.key, local_rank) for agent, local_rank in agents.choose(sizes)]
        assert chosen == [*(("a", number) for number in range(sizes[0])), ("b", 0)]
    with pytest.raises(AccelBenchError, match=r"2 nodes with \[1, 3\] processes, and .* the same$"):
        agents.choose([1, 3])
    agents.close()


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    nodes = Nodes()
    yield nodes
    nodes.agents.close()
    for peer in nodes.peers:
        peer.join(10)


def job_on(nodes: int, folder: Path, **fields: Any) -> Job:
    """Return a job for that many nodes."""
    resources = {"device": "cpu", "nodes": nodes, "devices": 1}
    experiment = make_experiment(resources=resources, parallel="none")
    places = {"folder": str(folder), "cache_folder": str(folder)}
    return Job(run_id="run", experiment=experiment, **places, **fields)


def test_a_run_goes_on_without_a_lost_node_that_it_does_not_use(
    nodes: Nodes, tmp_path: Path
) -> None:
    nodes.lose(2)
    started = nodes.agents.launch(job_on(2, tmp_path))
    assert [process.rank for process in started] == [0, 1]
    for process in started:
        process.sweep()
    assert [peer.kinds for peer in nodes.peers[:2]] == [
        ["port", "start", "sweep"],
        ["start", "sweep"],
    ]
    nodes.agents.launch(job_on(2, tmp_path, purpose="prepare"))[0].sweep()
    assert [peer.kinds[-2:] for peer in nodes.peers[:2]] == [["start", "sweep"]] * 2
    with pytest.raises(ConnectionError, match=r"rank 2: the connection to node c "):
        nodes.agents.launch(job_on(3, tmp_path))


def test_a_preparation_that_cannot_start_everywhere_is_ended(nodes: Nodes, tmp_path: Path) -> None:
    job = job_on(3, tmp_path, purpose="prepare")
    (tmp_path / "c-2").mkdir()
    with pytest.raises(FileExistsError):
        nodes.agents.launch(job)
    assert [peer.kinds for peer in nodes.peers] == [["start", "sweep"], ["start", "sweep"], []]
    nodes.lose(1)
    nodes.agents.pump(0.1)
    with pytest.raises(ConnectionError, match=r"the connection to node b "):
        nodes.agents.launch(job)
    assert [len(peer.kinds) for peer in nodes.peers] == [2, 2, 0]


def test_another_number_of_processes_is_refused_with_the_usual_cause() -> None:
    agents = Agents(("127.0.0.1", 0), b"secret", "accelerate launch", ONE_PROCESS)
    peer = Peer(agents.port, 0, 1)
    with pytest.raises(AccelBenchError) as refused:
        agents.gather(1, 2, 10)
    peer.join(10)
    text = str(refused.value)
    assert "accelerate launch has started 1 process, and the scenario asks for 2" in text
    assert "take use_cpu out of launcher.config_file" in text


def test_an_environment_that_a_node_lacks_is_named(
    pair: tuple[Channel, Channel], tmp_path: Path
) -> None:
    parent, agent = pair
    thread = threading.Thread(target=serve, args=(agent,))
    thread.start()
    place = {"local_rank": 0, "local_size": 1, "threads": 1}
    message = {"kind": "start", "rank": 0, "place": place, "variables": {}, "several_nodes": False}
    job = job_on(1, tmp_path, interpreter=(str(tmp_path / "bin" / "python"),))
    parent.send(message, job.model_dump_json().encode())
    parent.wait(10)
    ((answer, _),) = list(parent.receive())
    parent.send({"kind": "end", "code": 0})
    thread.join(10)
    assert answer["kind"] == "failed"
    assert f"{tmp_path}/bin/python" in answer["reason"]
    assert f"is not on node {socket.gethostname()}" in answer["reason"]
    assert "ACCEL_BENCH_CACHE" in answer["reason"]


def test_agents_are_awaited_on_all_addresses_of_an_endpoint() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    listener = Listener(launched_agents.listening_address(("127.0.1.1", port - 1)), b"secret")
    with socket.create_connection(("127.0.0.2", port), timeout=5) as connection:
        assert connection.getpeername() == ("127.0.0.2", port)
    listener.close()


def test_an_address_of_a_family_that_the_machine_lacks_is_not_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lacking = (socket.AF_APPLETALK, socket.SOCK_STREAM, 0, "", ("::1", 0))
    monkeypatch.setattr(launched_agents.socket, "getaddrinfo", lambda *words, **more: [lacking])
    assert not launched_agents.is_here("node-1")

"""Messages between parent and agents: complete, limited, and mutually authenticated."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from pathlib import Path

import pytest
from accel_bench_cluster.agents import Agents
from accel_bench_cluster.wire import (
    Channel,
    prove_as_agent,
    prove_as_parent,
    shared_secret,
)

from accel_bench.errors import AccelBenchError


def prove(pair: tuple[Channel, Channel], ours: bytes, theirs: bytes) -> list[Exception]:
    """Let both authenticate; return the exceptions of parent and agent."""
    parent, agent = pair
    errors: list[Exception] = []

    def answer() -> None:
        try:
            prove_as_agent(agent, theirs)
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        prove_as_parent(parent, ours)
    except OSError as error:
        errors.append(error)
        parent.close()
    thread.join()
    return errors


def test_messages_arrive_whole_and_in_order(pair: tuple[Channel, Channel]) -> None:
    parent, agent = pair
    assert prove(pair, b"same", b"same") == []
    agent.send({"kind": "log", "rank": 1}, b"\0\xff" * 1000)
    agent.send({"kind": "exit", "code": 0})
    received: list[tuple[dict[str, object], bytes]] = []
    while len(received) < 2:
        parent.wait(5)
        received += parent.receive()
    assert received[0] == ({"kind": "log", "rank": 1}, b"\0\xff" * 1000)
    assert received[1] == ({"kind": "exit", "code": 0}, b"")


def test_another_secret_is_refused_by_both(pair: tuple[Channel, Channel]) -> None:
    errors = " ".join(map(str, prove(pair, b"one-canary", b"another-canary")))
    assert "it does not know the secret" in errors
    assert "set ACCEL_BENCH_SECRET to the same text everywhere" in errors
    assert "canary" not in errors


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">II", 1 << 30, 0),
        struct.pack(">II", 2, 0) + b"[]",
        struct.pack(">II", 3, 0) + b"{{{",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_message_ends_the_connection(pair: tuple[Channel, Channel], sent: bytes) -> None:
    parent, agent = pair
    agent.socket.sendall(sent)
    parent.wait(5)
    with pytest.raises(ConnectionAbortedError):
        list(parent.receive())


@pytest.mark.parametrize("sizes", [(2000, 0), (20, 1 << 20)])
def test_large_messages_are_refused_before_the_proof(
    pair: tuple[Channel, Channel], sizes: tuple[int, int]
) -> None:
    parent, agent = pair
    agent.socket.sendall(struct.pack(">II", *sizes))
    with pytest.raises(ConnectionAbortedError):
        prove_as_parent(parent, b"secret", 5)


def test_a_proof_that_comes_byte_by_byte_ends_in_time(pair: tuple[Channel, Channel]) -> None:
    parent, agent = pair
    ended = threading.Event()

    def drip() -> None:
        agent.socket.sendall(struct.pack(">II", 1000, 0))
        with contextlib.suppress(OSError):
            for _ in range(40):
                agent.socket.sendall(b" ")
                if ended.wait(0.05):
                    break
        agent.close()

    thread = threading.Thread(target=drip)
    thread.start()
    with pytest.raises(TimeoutError, match="does not prove in time"):
        prove_as_parent(parent, b"secret", 0.2)
    ended.set()
    thread.join()


def test_a_stranger_is_refused_and_the_ranks_that_are_missing_are_named() -> None:
    agents = Agents(("127.0.0.1", 0), b"secret")
    with socket.create_connection(("127.0.0.1", agents.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(AccelBenchError) as refused:
            agents.gather(1, 2, 0.5)
    assert "ranks 0, 1 have not come" in str(refused.value)
    assert "127.0.0.1: it sends what is no message of accel-bench" in str(refused.value)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(AccelBenchError, match=f"port {port}: .*launcher.port"):
            Agents(("127.0.0.1", port), b"secret")


def test_the_secret_of_a_user_is_made_once_and_is_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCEL_BENCH_CACHE", str(tmp_path / "cache"))
    first = shared_secret()
    assert len(first) == 64
    assert shared_secret() == first
    assert (tmp_path / "cache" / "agents.key").stat().st_mode & 0o777 == 0o600
    assert len(list((tmp_path / "cache").iterdir())) == 1
    monkeypatch.setenv("ACCEL_BENCH_SECRET", "mine")
    assert shared_secret() == b"mine"

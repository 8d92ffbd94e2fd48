"""Programs and connections for tests of launchers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from accel_bench_cluster.wire import Channel
from launched import Launched


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Launched]:
    """A program in a folder of its own; what it leaves is ended after the test."""
    program = Launched(tmp_path, tmp_path)
    yield program
    program.end()


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    """A parent's and an agent's end of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        agent = Channel(socket.create_connection(server.getsockname()))
        parent = Channel(server.accept()[0])
    yield parent, agent
    parent.close()
    agent.close()

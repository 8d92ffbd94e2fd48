"""Connections for tests of launchers."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from accel_bench_cluster.wire import Channel


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    """A parent's and an agent's end of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        agent = Channel(socket.create_connection(server.getsockname()))
        parent = Channel(server.accept()[0])
    yield parent, agent
    parent.close()
    agent.close()

"""Listening socket of the parent, on which agents authenticate for the session."""

from __future__ import annotations

import json
import select
import socket
import time
from typing import Any

from accel_bench import Node
from accel_bench.errors import AccelBenchError
from accel_bench_cluster.agent import contract
from accel_bench_cluster.wire import Channel, prove_as_parent

ANSWER_SECONDS = 30.0
"""Seconds within which an agent must send its first message."""

PROOF_SECONDS = 5.0
"""Maximum seconds of an agent's authentication, during which other agents wait."""


class Listener:
    """Socket of the parent at which the agents of a session connect."""

    def __init__(self, address: tuple[str, int], secret: bytes) -> None:
        """Listen at the host and port `address`; port 0 is any free port.

        `secret` is shared with the agents. Raises AccelBenchError on failure.
        """
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            self._socket = socket.create_server(address, family=family, backlog=1024)
        except OSError as error:
            raise AccelBenchError(
                f"agents cannot be awaited at {address[0] or 'any address'}, port {address[1]}: "
                f"{error.strerror}; name another one with launcher.port or launcher.address"
            ) from error
        self._secret = secret
        self._refused: list[str] = []

    @property
    def port(self) -> int:
        """Number of the TCP port at which agents connect."""
        number: int = self._socket.getsockname()[1]
        return number

    @property
    def refused(self) -> str:
        """Part of an error message with the rejected connections and their reasons; empty if there
        are none."""
        return f"; refused: {'; '.join(self._refused)}" if self._refused else ""

    def accept(self, until: float) -> tuple[Channel, dict[str, Any]] | None:
        """Return the next agent's channel with its ranks and node, or None if no agent connects
        within 0.2 s.

        A connection that does not authenticate until `until`, a time of `time.monotonic`, is
        rejected.
        """
        if not select.select([self._socket], [], [], 0.2)[0]:
            return None
        connection, address = self._socket.accept()
        channel = Channel(connection)
        try:
            left = max(0.0, until - time.monotonic())
            prove_as_parent(channel, self._secret, min(left, PROOF_SECONDS))
            return channel, _hello(channel)
        except (OSError, KeyError, TypeError, ValueError) as error:
            self._refused.append(f"{address[0]}: {error}")
            channel.close()
            return None

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


def _hello(channel: Channel) -> dict[str, Any]:
    """Return an agent's first message after the authentication: its ranks and the description of
    its node. Raises OSError, KeyError, TypeError or ValueError if the message is late, malformed or
    of another version."""
    until = time.monotonic() + ANSWER_SECONDS
    while (left := until - time.monotonic()) > 0:
        channel.wait(left)
        for hello, content in channel.receive():
            if hello.get("contract") != contract():
                raise ConnectionRefusedError(f"it is of accel-bench {hello.get('contract')}")
            ranks: dict[str, Any] = json.loads(content)
            node_of(ranks["node"], 0)
            return ranks
    raise TimeoutError("it does not say which rank it is")


def node_of(description: dict[str, Any], rank: int, port: int | None = None) -> Node:
    """Return what a result document stores of the node on which a rank runs.

    `description` is as `describe_node` returns it, `port` the port of the rendezvous on rank 0's
    node. Raises ValueError for an invalid description.
    """
    stored = {name: value for name, value in description.items() if name in Node.model_fields}
    return Node.model_validate_json(json.dumps({**stored, "rank": rank, "port": port}))

"""Authenticated messages between a session's parent and agents: JSON and bytes over TCP."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accel_bench import cache_folder
from accel_bench.errors import AccelBenchError

SECRET = "ACCEL_BENCH_SECRET"
"""Environment variable with the secret shared by the parent and its agents."""

SEND_SECONDS = 30.0
"""Timeout in seconds for sending a message, and for receiving a message of the authentication."""

LOST_SECONDS = 10
"""Seconds of unacknowledged packets after which a peer counts as lost."""

LIMITS = (1 << 16, 1 << 26)
"""Maximum bytes of a message's JSON and of its payload."""

PROOF_LIMITS = (1 << 10, 0)
"""Maximum bytes of a message before the peer is authenticated."""

_SIZES = struct.Struct(">II")


class Channel:
    """Connection that sends and receives whole messages of JSON and bytes, and never executes
    received data."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._buffer = bytearray()
        connection.settimeout(SEND_SECONDS)
        _notice_loss(connection)

    def fileno(self) -> int:
        """Return the file descriptor, for `select`."""
        return self.socket.fileno()

    def send(self, message: dict[str, Any], payload: bytes = b"") -> None:
        """Send a message: a JSON object, and `payload` as bytes. Raises OSError if the peer is
        lost."""
        header = json.dumps(message).encode()
        self.socket.sendall(_SIZES.pack(len(header), len(payload)) + header + payload)

    def wait(self, seconds: float | None) -> None:
        """Wait until data can be received, for at most `seconds`; None is no limit."""
        select.select([self], [], [], seconds)

    def receive(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Yield each message received so far, as its JSON object and payload.

        Raises OSError if the peer is gone, or sends no valid message.
        """
        while select.select([self], [], [], 0)[0]:
            data = self.socket.recv(1 << 20)
            if not data:
                raise ConnectionResetError("it was closed")
            self._buffer += data
            while (message := self._next()) is not None:
                yield message

    def receive_proof(self, seconds: float) -> dict[str, Any]:
        """Return the JSON object of a message of the authentication. Raises OSError if none arrives
        within `seconds`."""
        until = time.monotonic() + seconds
        while (message := self._next(PROOF_LIMITS)) is None:
            self.wait(max(0.0, until - time.monotonic()))
            if time.monotonic() > until:
                raise TimeoutError("it does not prove in time that it knows the secret")
            data = self.socket.recv(PROOF_LIMITS[0])
            if not data:
                raise ConnectionResetError("it was closed")
            self._buffer += data
        return message[0]

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _next(self, limits: tuple[int, int] = LIMITS) -> tuple[dict[str, Any], bytes] | None:
        """Remove and return the first whole message of the buffer, or None if it is incomplete.

        `limits` are the maximum bytes of its JSON and payload. Raises OSError beyond them, or for
        invalid JSON.
        """
        if len(self._buffer) < _SIZES.size:
            return None
        header, payload = _SIZES.unpack_from(self._buffer)
        if header > limits[0] or payload > limits[1]:
            raise ConnectionAbortedError("it sends what is no message of accel-bench")
        start, end = _SIZES.size + header, _SIZES.size + header + payload
        if len(self._buffer) < end:
            return None
        try:
            message = json.loads(bytes(self._buffer[_SIZES.size : start]))
        except ValueError as error:
            raise ConnectionAbortedError("it sends what is no JSON") from error
        if not isinstance(message, dict):
            raise ConnectionAbortedError("it sends what is no message of accel-bench")
        content = bytes(self._buffer[start:end])
        del self._buffer[:end]
        return message, content


def prove_as_parent(channel: Channel, secret: bytes, seconds: float = SEND_SECONDS) -> None:
    """Authenticate an agent within `seconds`, then authenticate to it.

    Raises OSError if the agent does not know the secret, or is lost or late.
    """
    ours = secrets.token_hex(16)
    channel.send({"nonce": ours})
    reply = channel.receive_proof(seconds)
    theirs = str(reply.get("nonce", ""))
    if not hmac.compare_digest(_proof(secret, "agent", ours, theirs), _text(reply)):
        raise ConnectionRefusedError("it does not know the secret")
    channel.send({"proof": _proof(secret, "parent", theirs, ours)})


def prove_as_agent(channel: Channel, secret: bytes) -> None:
    """Authenticate to the parent, then authenticate the parent.

    Raises OSError if the parent has another secret, or is lost or late.
    """
    theirs, ours = str(channel.receive_proof(SEND_SECONDS).get("nonce", "")), secrets.token_hex(16)
    channel.send({"nonce": ours, "proof": _proof(secret, "agent", theirs, ours)})
    try:
        reply = channel.receive_proof(SEND_SECONDS)
    except OSError as error:
        raise ConnectionRefusedError(
            f"the parent has another secret; set {SECRET} to the same text everywhere"
        ) from error
    if not hmac.compare_digest(_proof(secret, "parent", ours, theirs), _text(reply)):
        raise ConnectionRefusedError("what answers there does not know the secret")


def shared_secret() -> bytes:
    """Return the secret in the environment, else in a file that only this user can read.

    The file is created if missing; nodes with a common home folder share it. Raises AccelBenchError
    if it cannot be read.
    """
    if text := os.environ.get(SECRET):
        return text.encode()
    path = Path(cache_folder()) / "agents.key"
    aside = path.with_name(f".agents.key.{secrets.token_hex(8)}")
    if not path.exists():
        descriptor = os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with open(descriptor, "w", encoding="ascii") as handle:
            handle.write(secrets.token_hex(32))
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
        aside.unlink()
    try:
        return path.read_bytes()
    except OSError as error:
        raise AccelBenchError(f"{path} cannot be read: {error.strerror}; set {SECRET}") from error


def _proof(secret: bytes, role: str, theirs: str, ours: str) -> str:
    return hmac.digest(secret, f"{role}:{theirs}:{ours}".encode(), "sha256").hex()


def _text(answer: dict[str, Any]) -> str:
    return str(answer.get("proof", "")).encode("ascii", "replace").decode()


def _notice_loss(connection: socket.socket) -> None:
    """Set TCP options by which the kernel detects a lost peer, even on an idle connection."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", LOST_SECONDS // 2),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", LOST_SECONDS // 2),
        ("TCP_USER_TIMEOUT", LOST_SECONDS * 1000),
        ("TCP_NODELAY", 1),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

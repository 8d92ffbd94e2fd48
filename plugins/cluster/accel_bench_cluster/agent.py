"""Agent: a process that starts ranks on its machine and relays their output to the parent.

An agent imports no torch, ends with its connection, and leaves no files behind.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from accel_bench import (
    Job,
    LocalProcess,
    NodePlace,
    Placement,
    cache_folder,
    rank_environment,
)
from accel_bench.errors import AccelBenchError
from accel_bench_cluster.node import describe_node, free_port, interface_of
from accel_bench_cluster.wire import Channel, prove_as_agent

TICK_SECONDS = 0.25
"""Interval in seconds at which an agent relays its ranks' output."""

CHUNK_BYTES = 1 << 20
"""Maximum bytes of a file in one message."""

MAXIMUM_FILE_BYTES = 1 << 28
"""Maximum bytes of a file that an agent relays; larger files are dropped."""

INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Environment variables that name the network interface for communication between nodes."""


class HostedRank:
    """Rank that an agent runs on its machine, in a temporary folder that is removed at the end."""

    def __init__(self, channel: Channel, message: dict[str, Any], payload: bytes) -> None:
        self._channel = channel
        self.rank = int(message["rank"])
        self._folder = Path(tempfile.mkdtemp(prefix="accel-bench-rank-"))
        self._logged = 0
        self._page = b""
        try:
            job = Job.model_validate_json(payload)
            refuse_interpreter(job)
            # The rank says why it keeps no larger one, which would stay behind.
            most = min(job.update_bytes, MAXIMUM_FILE_BYTES)
            here = {"folder": str(self._folder), "cache_folder": str(cache_folder())}
            self._job = job.model_copy(update={**here, "update_bytes": most})
            self._job.path().write_text(self._job.model_dump_json(), encoding="utf8")
            environment = rank_environment(self._job, self.rank, NodePlace(**message["place"]))
            environment |= message["variables"]
            if message["several_nodes"]:
                set_interface(environment, channel.socket.getsockname()[0])
            self._process = LocalProcess(self._job, self.rank, environment)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def relay(self) -> bool:
        """Send the rank's new output to the parent. Return True once the rank has ended and all
        output is sent."""
        code = self._process.poll()
        with contextlib.suppress(OSError):
            page = self._job.heartbeat_path(self.rank).read_bytes()
            if page != self._page:
                self._send("page", page)
                self._page = page
        self._relay_log()
        if code is None:
            return False
        self._process.sweep()
        for path in self._left_behind():
            self._send_file(path)
        self._send("exit", code=code)
        self.close()
        return True

    def act(self, message: dict[str, Any]) -> None:
        """Execute the parent's `message`: dump the rank's stack, send it a signal, or end its child
        processes."""
        match message["kind"]:
            case "signal":
                self._process.signal(int(message["number"]))
            case "dump_stack":
                self._process.dump_stack()
            case "sweep":
                self._process.sweep()

    def close(self) -> None:
        """End the rank and its remaining child processes, and remove its folder."""
        self._process.sweep()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _relay_log(self) -> None:
        with (
            contextlib.suppress(FileNotFoundError),
            self._job.log_path(self.rank).open("rb") as log,
        ):
            log.seek(self._logged)
            while chunk := log.read(CHUNK_BYTES):
                self._logged += len(chunk)
                self._send("log", chunk)

    def _left_behind(self) -> Iterator[Path]:
        """Yield the paths of the files that the rank and its plugins wrote for the parent. A larger
        file than `MAXIMUM_FILE_BYTES` is named in the log instead."""
        own = {self._job.path(), self._job.log_path(self.rank), self._job.heartbeat_path(self.rank)}
        for path in sorted(self._folder.rglob("*")):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and path not in own:
                if status.st_size <= MAXIMUM_FILE_BYTES:
                    yield path
                else:
                    text = f"accel-bench: {path.name} is too large to be kept: {status.st_size}\n"
                    self._send("log", text.encode())

    def _send_file(self, path: Path) -> None:
        name = str(path.relative_to(self._folder))
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                self._send("file", chunk, name=name)

    def _send(self, kind: str, payload: bytes = b"", **more: Any) -> None:
        self._channel.send({"kind": kind, "rank": self.rank, **more}, payload)


def refuse_interpreter(job: Job) -> None:
    """Raise AccelBenchError if this node lacks the Python environment of a job."""
    if job.interpreter and shutil.which(job.interpreter[0]) is None:
        name = job.experiment.scenario.resources.environment
        raise AccelBenchError(
            f"{job.interpreter[0]}, the Python of environment {name!r}, is not on node "
            f"{socket.gethostname()}; have all nodes share the folder that ACCEL_BENCH_CACHE "
            "names, or the one of `python` in `environments`"
        )


def set_interface(environment: dict[str, str], address: str) -> None:
    """Set the variables that name the network interface with `address`, for a rank on one of
    several nodes. Variables that the user has set stay."""
    interface = interface_of(address)
    for name in INTERFACES if interface else ():
        environment.setdefault(name, str(interface))


def serve(channel: Channel) -> int:
    """Start ranks and relay their output until the parent ends the agent; return the exit code
    that the parent sends.

    Raises OSError if the connection is lost.
    """
    ranks: dict[int, HostedRank] = {}
    try:
        while True:
            channel.wait(TICK_SECONDS if ranks else None)
            for message, payload in channel.receive():
                if message["kind"] == "end":
                    return int(message["code"])
                _handle(channel, ranks, message, payload)
            for rank in [number for number, hosted in ranks.items() if hosted.relay()]:
                del ranks[rank]
    finally:
        for hosted in ranks.values():
            hosted.close()


def _handle(
    channel: Channel, ranks: dict[int, HostedRank], message: dict[str, Any], payload: bytes
) -> None:
    """Execute a message of the parent: report a free port, start a rank, or act on a rank.

    `ranks` are the running ranks by number, and `payload` is the job of a rank to start. An error
    is sent back to the parent. Raises OSError if the connection is lost.
    """
    rank = int(message["rank"])
    try:
        if message["kind"] == "port":
            address = channel.socket.getsockname()[0]
            channel.send({"kind": "port", "rank": rank, "port": free_port(address)})
        elif message["kind"] == "start":
            if rank in ranks:
                ranks.pop(rank).close()
            ranks[rank] = HostedRank(channel, message, payload)
        elif rank in ranks:
            ranks[rank].act(message)
    except (AccelBenchError, ValueError, OSError) as error:
        if isinstance(error, ConnectionError | TimeoutError):
            raise
        channel.send({"kind": "failed", "rank": rank, "reason": str(error)})


def connect(address: tuple[str, int], seconds: float) -> Channel:
    """Return a connection to the parent at the host and port `address`; the parent may start later.

    Raises OSError if there is no connection after `seconds`.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            return Channel(socket.create_connection(address, timeout=seconds))
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def run_agent(
    address: tuple[str, int], secret: bytes, ranks: dict[str, Any], seconds: float
) -> int:
    """Connect to the parent, announce this agent's ranks, and serve; return the exit code.

    `address` is the parent's host and port, `ranks` the result of `ranks_of`. Raises
    AccelBenchError if no parent answers within `seconds`, or if the connection is lost.
    """
    where = f"{address[0]}:{address[1]}"
    try:
        channel = connect(address, seconds)
    except OSError as error:
        raise AccelBenchError(
            f"no parent is at {where} after {seconds:g} s: {error}; see what rank 0 prints, and "
            "that this address of it can be reached from here"
        ) from error
    try:
        prove_as_agent(channel, secret)
        hello = {**ranks, "node": describe_node(channel.socket.getsockname()[0])}
        channel.send({"kind": "hello", "contract": contract()}, json.dumps(hello).encode())
        return serve(channel)
    except OSError as error:
        raise AccelBenchError(
            f"the connection to the parent at {where} is lost: {error}"
        ) from error
    finally:
        channel.close()


def contract() -> str:
    """Return the version of accel-bench and of the job schema as a string, which must be equal at
    the parent and its agents."""
    return f"{metadata.version('accel-bench')}, jobs {Job.model_fields['schema_version'].default}"


def ranks_of(placement: Placement | None, devices: int = 1) -> dict[str, Any]:
    """Return what an agent announces of its ranks: `ranks`, pairs of rank and local rank; `size`,
    the number of all agents' ranks; `node_key`, the launcher's index of the node or None; and
    `launcher`, the launcher's name.

    Without a launcher's `placement` there is rank 0 alone. `devices` is the number of ranks if the
    launcher starts one process per node.
    """
    if placement is None:
        return {"ranks": [[0, 0]], "size": 1, "node_key": None, "launcher": ""}
    ranks, size = [[placement.rank, placement.local_rank or 0]], placement.size
    if placement.per_node:
        ranks = [[placement.rank * devices + number, number] for number in range(devices)]
        size *= devices
    key = None if placement.node is None else str(placement.node)
    return {"ranks": ranks, "size": size, "node_key": key, "launcher": placement.launcher}


def end_on_signals() -> None:
    """Make SIGTERM and SIGHUP raise SystemExit, so that cleanup runs, and ignore SIGINT."""

    def stop(number: int, frame: object) -> None:
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    # A terminal sends it to all: the parent acts on it.
    signal.signal(signal.SIGINT, lambda number, frame: None)

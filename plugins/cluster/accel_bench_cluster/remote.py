"""Handles of ranks that agents run on other nodes, with files relayed to the run's folder."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from accel_bench import Job, Node, RankProcess, RankResult, Status
from accel_bench_cluster.wire import Channel

LOST_CODE = 255
"""Exit code of a rank whose agent is lost, the same as of `ssh`."""

ANSWER_SECONDS = 30.0
"""Seconds within which an agent must answer and end a rank's child processes."""


@dataclass
class Agent:
    """The parent's record of an agent; `channel` is None if the parent process is the agent."""

    channel: Channel | None
    description: dict[str, Any]
    """Description of the agent's machine, as `describe_node` returns it."""

    key: str
    """Identity of the node that the agent runs on."""

    ranks: list[tuple[int, int]]
    """Ranks in the allocation that the agent can start, with their local ranks."""

    lost: str = ""
    """Reason why the agent is lost; empty while it is connected."""

    processes: dict[int, RemoteProcess] = field(default_factory=dict)
    """Handles of the ranks that the agent runs, by rank."""

    port: int | None = None
    """Free port that the agent has last reported."""

    @property
    def name(self) -> str:
        """Name and address of the agent's node, for messages."""
        return f"{self.description['name']} ({self.description['address']})"

    def send(self, message: dict[str, Any], payload: bytes = b"") -> None:
        """Send a message with JSON and bytes to the agent. Mark the agent as lost if the connection
        breaks."""
        assert self.channel is not None
        try:
            self.channel.send(message, payload)
        except OSError as error:
            self.lose(error)

    def receive(self) -> None:
        """Handle the messages received from the agent so far. Mark the agent as lost if the
        connection breaks or a message is invalid."""
        assert self.channel is not None
        try:
            for message, payload in self.channel.receive():
                if message.get("kind") == "port":
                    self.port = int(message["port"])
                elif (process := self.processes.get(int(message["rank"]))) is not None:
                    process.handle(message, payload)
        except (OSError, KeyError, TypeError, ValueError) as error:
            self.lose(error)

    def lose(self, error: Exception) -> None:
        """Mark the agent as lost because of `error`, and mark its ranks as ended."""
        assert self.channel is not None
        self.channel.close()
        reason = getattr(error, "strerror", None) or str(error)
        self.lost = f"the connection to node {self.name} is lost: {reason}"
        for process in self.processes.values():
            process.lose(self.lost)


class RemoteProcess:
    """The parent's handle of a rank that an agent runs. The files that the agent sends are written
    to the run's folder on the parent's machine."""

    pid: int | None = None

    def __init__(self, pump: Callable[[float], None], agent: Agent, job: Job, rank: int) -> None:
        """Register the handle with its agent. `pump` handles all agents' messages for at most the
        number of seconds that it is called with."""
        self.rank = rank
        self.lost = ""
        self.node: Node | None = None
        self._pump = pump
        self._agent = agent
        self._job = job
        self._code: int | None = None
        self._files: dict[str, Path] = {}
        agent.processes[rank] = self

    def start(self, message: dict[str, Any]) -> None:
        """Ask the agent to start the rank with the values in `message` that `HostedRank` reads."""
        self._job.log_path(self.rank).touch()
        payload = self._job.model_dump_json().encode()
        self._agent.send({"kind": "start", "rank": self.rank, **message}, payload)

    def wait(self, seconds: float) -> None:
        """Handle agents' messages for exactly `seconds`, even if the process ends earlier."""
        until = time.monotonic() + seconds
        while self._code is None and (left := until - time.monotonic()) > 0:
            self._pump(left)
        if (left := until - time.monotonic()) > 0:
            time.sleep(left)

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs; 255 if the agent is lost."""
        if self._code is None:
            self._pump(0)
        return self._code

    def dump_stack(self) -> None:
        """Ask the agent to write the rank's Python stacks to its log."""
        self._act("dump_stack")

    def signal(self, number: int) -> None:
        """Ask the agent to send the signal `number` to the rank."""
        self._act("signal", number=number)

    def sweep(self) -> None:
        """Ask the agent to end the rank's remaining child processes, and wait until it has."""
        self._act("sweep")
        until = time.monotonic() + ANSWER_SECONDS
        while self._code is None and time.monotonic() < until:
            self._pump(until - time.monotonic())
        if self._code is None:
            self._agent.lose(TimeoutError("it does not answer"))
        self._agent.processes.pop(self.rank, None)

    def handle(self, message: dict[str, Any], payload: bytes) -> None:
        """Handle a message on the rank; write its heartbeat, log or file to the run's folder.

        Raises OSError if a file cannot be written, such as on a full disk.
        """
        match message["kind"]:
            case "page":
                self._job.heartbeat_path(self.rank).write_bytes(payload)
            case "log":
                self._append(self._job.log_path(self.rank), payload)
            case "file":
                self._append(self._place(str(message["name"])), payload)
            case "failed":
                reason = f"it could not be started on node {self._agent.name}: {message['reason']}"
                self._write_result(reason)
                self._code = 1
            case "exit":
                self._code = int(message["code"])

    def lose(self, reason: str) -> None:
        """Mark the rank as ended because its agent is lost, unless it has ended before."""
        if self._code is None:
            self.lost = reason
            self._code = LOST_CODE

    def _act(self, kind: str, **more: Any) -> None:
        if self._code is None:
            self._agent.send({"kind": kind, "rank": self.rank, **more})

    def _place(self, name: str) -> Path:
        """Return the path for the relayed file `name`. A file of another rank with that name gets a
        prefix.

        Raises ConnectionAbortedError for a name outside the run's folder.
        """
        if name not in self._files:
            relative = PurePath(name)
            if relative.is_absolute() or ".." in relative.parts:
                raise ConnectionAbortedError(f"it sends a file that is called {name!r}")
            path = Path(self._job.folder) / relative
            if path.exists() or path.is_symlink():
                path = path.with_name(f"rank{self.rank}.{path.name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            self._files[name] = path
        return self._files[name]

    def _append(self, path: Path, payload: bytes) -> None:
        if Path(self._job.folder).is_dir():  # it may have been removed meanwhile
            with path.open("ab") as file:
                file.write(payload)

    def _write_result(self, reason: str) -> None:
        result = RankResult(rank=self.rank, status=Status.INFRA_ERROR, reasons=(reason,))
        self._append(self._job.result_path(self.rank), result.model_dump_json().encode())


class PreparedNodes:
    """Handle of a preparation job, which runs once on each node and fails if it fails on any node.

    The other nodes' output is appended to the first node's log at the end.
    """

    def __init__(self, processes: Sequence[RankProcess], jobs: Sequence[Job]) -> None:
        self.rank = 0
        self.pid = processes[0].pid
        self.node = getattr(processes[0], "node", None)
        self._processes = processes
        self._jobs = jobs
        self._merged = False

    @property
    def lost(self) -> str:
        """Reason why a node is lost, or an empty string if no node is."""
        return next(filter(None, (getattr(process, "lost", "") for process in self._processes)), "")

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` for the job's end on the first node on which it still runs."""
        running = [process for process in self._processes if process.poll() is None]
        (running or list(self._processes))[0].wait(seconds)

    def poll(self) -> int | None:
        """Return the first nonzero exit code, or 0, once all nodes have ended; None before that."""
        codes = [process.poll() for process in self._processes]
        if any(code is None for code in codes):
            return None
        self._merge()
        return next((code for code in codes if code), 0)

    def dump_stack(self) -> None:
        """Write the Python stacks of the job's processes on all nodes to their logs."""
        for process in self._processes:
            process.dump_stack()

    def signal(self, number: int) -> None:
        """Send the signal `number` to the job's processes on all nodes."""
        for process in self._processes:
            process.signal(number)

    def sweep(self) -> None:
        """End the preparation's remaining child processes on all nodes."""
        for process in self._processes:
            process.sweep()
        self.poll()

    def _merge(self) -> None:
        """Append the other nodes' logs to the first node's log, and replace the first node's result
        by a failed result of another node. Remove the other nodes' folders."""
        if self._merged:
            return
        self._merged = True
        first, *others = self._jobs
        for job in others:
            folder = Path(job.folder)
            with first.log_path(0).open("ab") as log:
                log.write(f"on node {folder.name}:\n".encode())
                if job.log_path(0).exists():
                    log.write(job.log_path(0).read_bytes())
            if job.result_path(0).exists():
                result = RankResult.model_validate_json(job.result_path(0).read_bytes())
                if not result.status.completed:
                    reasons = tuple(f"on node {folder.name}: {reason}" for reason in result.reasons)
                    text = result.model_copy(update={"reasons": reasons}).model_dump_json()
                    first.result_path(0).write_text(text, encoding="utf8")
            shutil.rmtree(folder, ignore_errors=True)

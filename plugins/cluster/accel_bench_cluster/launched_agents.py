"""Agents that a launcher's program, such as srun or torchrun, starts for a session."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from accel_bench import Allocation, python_command
from accel_bench.errors import AccelBenchError, ScenarioError
from accel_bench_cluster.agents import Agents, Ended
from accel_bench_cluster.wire import SECRET, shared_secret

PARENT = "ACCEL_BENCH_AGENTS"
"""Environment variable with the parent's `HOST:PORT`; without HOST, agents use srun's host."""

LOST = "ACCEL_BENCH_LOST"
"""Environment variable with the path of a file that an agent creates when the parent is lost."""

UNSET = "ACCEL_BENCH_UNSET"
"""Environment variable with the names of the launcher's variables that agents unset."""

END_SECONDS = 15.0
"""Seconds within which a launcher's program must end after its agents."""

FOLLOW_SECONDS = 1.0
"""Interval in seconds at which a node without the parent process checks that the parent lives."""

TAIL_BYTES = 4000
"""Number of bytes at the end of a program's output that an error quotes."""


class StartedAgents(Agents):
    """Agents of a session, and the launcher's program that has started them and ends with them."""

    def __init__(self, address: tuple[str, int], secret: bytes, launcher: str, hint: str = ""):
        super().__init__(address, secret, launcher, hint)
        self._secret = secret
        self._output = tempfile.TemporaryFile()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str], host: str) -> None:
        """Start the launcher's program `command`, whose agents connect to this machine by the name
        `host`.

        Raises AccelBenchError if the program is not installed.
        """
        environment = agent_environment(host, self.port, self._secret)
        try:
            self._process = start_program(command, environment, self._output)
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        """Raise AccelBenchError with the end of the program's output if the program has ended."""
        if self._process is None or self._process.poll() is None:
            return
        raise AccelBenchError(
            f"{self.launcher} ended with {self._process.returncode} before all ranks had come"
            f"{self.hint}:\n{self.tail()}"
        )

    def tail(self) -> str:
        """Return the last `TAIL_BYTES` bytes of the program's output as text."""
        self._output.seek(max(0, os.fstat(self._output.fileno()).st_size - TAIL_BYTES))
        return self._output.read().decode("utf8", "replace").strip()

    def close(self) -> None:
        """End the agents, then the program."""
        patience = END_SECONDS if self.nodes() else 0.0
        super().close()
        if self._process is not None:
            end_program(self._process, patience)
        self._output.close()


def start_program(
    command: Sequence[str], environment: Mapping[str, str], output: IO[bytes] | None
) -> subprocess.Popen[bytes]:
    """Start a launcher's program in a new process session, which Ctrl-C does not reach.

    `output` is the open file for what it prints, or None for this process's stdout. Raises
    AccelBenchError if the program cannot be started.
    """
    try:
        return subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise AccelBenchError(
            f"{command[0]} cannot be started: {error.strerror}; install it, or use another launcher"
        ) from error


def end_program(process: subprocess.Popen[bytes], patience: float = END_SECONDS) -> None:
    """Wait `patience` seconds for a program to end, then terminate it, and finally kill it."""
    for number, seconds in ((0, patience), (signal.SIGTERM, END_SECONDS), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return


def follow(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a launcher's program on a node other than the parent's, and return its exit code.

    If the parent is lost, the program is ended within seconds, and the result is 1.
    """
    with tempfile.TemporaryDirectory(prefix="accel-bench-") as folder:
        lost = Path(folder) / "lost"
        process = start_program(command, {**environment, LOST: str(lost)}, None)
        try:
            while not lost.exists():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(FOLLOW_SECONDS)
            return 1
        finally:
            end_program(process, FOLLOW_SECONDS)


def agent_command() -> list[str]:
    """Return the command line that starts an agent."""
    return python_command("-m", "accel_bench_cluster")


def agent_environment(host: str, port: int, secret: bytes) -> dict[str, str]:
    """Return the environment variables of agents: this process's, the parent's `host` and `port`,
    and the secret.

    torchrun sets a default number of threads, which agents unset for their ranks.
    """
    unset = "" if "OMP_NUM_THREADS" in os.environ else "OMP_NUM_THREADS"
    ours = {PARENT: f"{host}:{port}", SECRET: secret.decode(), UNSET: unset}
    return {**os.environ, **ours}


def new_secret() -> bytes:
    """Return a new random secret for one session on one machine."""
    return secrets.token_hex(32).encode()


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Return the host and port of the string `HOST:PORT`. Raises ScenarioError for another string,
    as of the option `launcher.endpoint`."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65535:
        raise ScenarioError(f"launcher.endpoint {endpoint!r} is no HOST:PORT, such as node-1:29500")
    return host.strip("[]"), int(port)


def is_here(host: str) -> bool:
    """Return whether a host name or address is this machine's. Raises ScenarioError for an unknown
    name."""
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ScenarioError(f"{host!r} is no known machine: {error.strerror}") from error
    for family, kind, _, _, address in addresses:
        # A machine without IPv6 has no such sockets, and may know such addresses.
        with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
            probe.bind(address)
            return True
    return False


class MeetingPoint(NamedTuple):
    """Rendezvous address of a launcher's nodes."""

    endpoint: tuple[str, int] | None
    """Host and port at which ranks meet, or None for one node. Agents use the next port."""

    is_parent: bool
    """True if the parent runs on this machine."""


def meeting_point(launcher: str, nodes: int, endpoint: str | None, way_out: str) -> MeetingPoint:
    """Return the rendezvous of a launcher's nodes, given its option `endpoint`, a string
    `HOST:PORT`. One node needs no endpoint. Raises ScenarioError, with the hint `way_out`, if
    several nodes have no valid endpoint. `launcher` is the launcher's name in errors."""
    if nodes == 1:
        return MeetingPoint(None, True)
    if endpoint is None:
        needed = "needs --set launcher.endpoint=HOST:PORT"
        raise ScenarioError(f"launcher {launcher} on {nodes} nodes {needed}{way_out}")
    address = split_endpoint(endpoint)
    return MeetingPoint(address, is_here(address[0]))


def start_agents(
    command: Sequence[str],
    meeting: MeetingPoint,
    shape: tuple[int, int],
    seconds: float,
    names: tuple[str, str],
) -> Allocation:
    """Start a launcher's program, wait for its agents, and return them. On a node without the
    parent, wait for the program's end. `meeting` is the rendezvous, and `shape` the number of nodes
    and of ranks on each. `seconds` is the timeout of the connection. `names` are the launcher's
    name and a hint for errors, which `Agents` gets."""
    endpoint = meeting.endpoint
    host, port = endpoint or ("127.0.0.1", 0)
    secret = new_secret() if endpoint is None else shared_secret()
    if not meeting.is_parent:
        return Ended(follow(command, agent_environment(host, port + 1, secret)))
    agents = StartedAgents(listening_address(endpoint), secret, *names)
    agents.start(command, host)
    agents.gather(*shape, seconds)
    return agents


def listening_address(endpoint: tuple[str, int] | None) -> tuple[str, int]:
    """Return the host and port to listen at: all interfaces for several nodes, or the loopback for
    one node.

    `endpoint` is the host and port of the rendezvous, or None for one node. Its host is not used to
    listen, since this machine may resolve it to an address that others cannot reach (127.0.1.1).
    """
    if endpoint is None:
        return "127.0.0.1", 0
    host, port = endpoint
    return "::" if ":" in host else "", port + 1

"""Agents that a launcher's program starts for one session."""

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
"""Variable with the parent's `HOST:PORT`; without a host, srun says from where it was started."""

LOST = "ACCEL_BENCH_LOST"
"""Variable with a file that an agent makes when the parent is lost."""

UNSET = "ACCEL_BENCH_UNSET"
"""Variable with names of variables to remove: the launcher sets them, the parent does not."""

END_SECONDS = 15.0
"""How long a launcher's program may take to end once its agents have."""

FOLLOW_SECONDS = 1.0
"""How often a node without the parent looks whether the parent is lost."""

TAIL_BYTES = 4000
"""Bytes of what the program has printed that stand in an error."""


class StartedAgents(Agents):
    """The agents of a session and the program that has started them, which ends with them."""

    def __init__(self, address: tuple[str, int], secret: bytes, launcher: str, hint: str = ""):
        super().__init__(address, secret, launcher, hint)
        self._secret = secret
        self._output = tempfile.TemporaryFile()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str], host: str) -> None:
        """Start the program, whose agents find this machine as `host`.

        Raises AccelBenchError where it is not there.
        """
        environment = agent_environment(host, self.port, self._secret)
        try:
            self._process = start_program(command, environment, self._output)
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        """Raise AccelBenchError when the program has ended, with what it has printed."""
        if self._process is None or self._process.poll() is None:
            return
        raise AccelBenchError(
            f"{self.launcher} ended with {self._process.returncode} before all ranks had come"
            f"{self.hint}:\n{self.tail()}"
        )

    def tail(self) -> str:
        """Return the end of what the program has printed."""
        self._output.seek(max(0, os.fstat(self._output.fileno()).st_size - TAIL_BYTES))
        return self._output.read().decode("utf8", "replace").strip()

    def close(self) -> None:
        """End the agents, then the program, which ends by itself only after agents."""
        patience = END_SECONDS if self.nodes() else 0.0
        super().close()
        if self._process is not None:
            end_program(self._process, patience)
        self._output.close()


def start_program(
    command: Sequence[str], environment: Mapping[str, str], output: IO[bytes] | None
) -> subprocess.Popen[bytes]:
    """Start a launcher's program in a session of its own: Ctrl-C is the parent's to handle."""
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
    """Wait until the program ends; end it where it does not."""
    for number, seconds in ((0, patience), (signal.SIGTERM, END_SECONDS), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return


def follow(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Start a launcher's program on a node without the parent; return its exit code at its end.

    Where the parent is lost, the program may wait minutes for it: then it is ended.
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
    """Return the command of an agent."""
    return python_command("-m", "accel_bench_cluster")


def agent_environment(host: str, port: int, secret: bytes) -> dict[str, str]:
    """Return the variables by which agents find the parent, beside those of this process.

    torchrun sets the number of threads where it is not set: ranks go without that.
    """
    unset = "" if "OMP_NUM_THREADS" in os.environ else "OMP_NUM_THREADS"
    ours = {PARENT: f"{host}:{port}", SECRET: secret.decode(), UNSET: unset}
    return {**os.environ, **ours}


def new_secret() -> bytes:
    """Return the secret of one session on one machine."""
    return secrets.token_hex(32).encode()


def split_endpoint(endpoint: str, option: str) -> tuple[str, int]:
    """Return host and port. Raises ScenarioError."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65535:
        raise ScenarioError(f"{option} {endpoint!r} is no HOST:PORT, such as node-1:29500")
    return host.strip("[]"), int(port)


def is_here(host: str) -> bool:
    """Return whether a name or an address is this machine's. Raises ScenarioError if unknown."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ScenarioError(f"{host!r} is no known machine: {error.strerror}") from error
    for family, kind, _, _, address in found:
        # A machine without IPv6 has no such sockets, and may know such addresses.
        with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
            probe.bind(address)
            return True
    return False


class MeetingPoint(NamedTuple):
    """Address at which the nodes of a launcher meet."""

    endpoint: tuple[str, int] | None
    """Host and port, after which the agents use the next one; None for one node."""

    is_parent: bool
    """True if the parent is this machine."""


def meeting_point(launcher: str, nodes: int, endpoint: str | None, way_out: str) -> MeetingPoint:
    """Return where several nodes meet, by the option `endpoint`.

    Raises ScenarioError with the way out where none is given, or it is none.
    """
    if nodes == 1:
        return MeetingPoint(None, True)
    if endpoint is None:
        needed = "needs --set launcher.endpoint=HOST:PORT"
        raise ScenarioError(f"launcher {launcher} on {nodes} nodes {needed}{way_out}")
    found = split_endpoint(endpoint, "launcher.endpoint")
    return MeetingPoint(found, is_here(found[0]))


def start_agents(
    command: Sequence[str],
    meeting: MeetingPoint,
    shape: tuple[int, int],
    seconds: float,
    names: tuple[str, str],
) -> Allocation:
    """Start a launcher's program and wait for its agents; on other nodes, until it ends.

    `names` are the launcher's and the hint that `Agents` take.
    """
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
    """Return where to await the agents of an endpoint, or those of this machine alone.

    On all addresses: this machine may know its own name by one that others do not reach, such as
    127.0.1.1.
    """
    if endpoint is None:
        return "127.0.0.1", 0
    host, port = endpoint
    return "::" if ":" in host else "", port + 1

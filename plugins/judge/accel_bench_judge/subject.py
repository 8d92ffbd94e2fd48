"""Control of the process that computes a judged step: start, request, stop between steps, end."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from accel_bench.documents.redaction import looks_secret
from accel_bench.errors import InvalidRunError
from accel_bench_judge.subject_impl import ANSWER

STEP_SECONDS, WARMUP_SECONDS = 120.0, 900.0
"""Time limits in seconds of a measured step, and of an earlier step, in which compilers run."""

FREEZE_SECONDS = 5.0
"""Seconds within which a stopped process must stand still."""

STOPPING_SECONDS = 0.001
"""CPU seconds that a process may use while it should stand still: a timer of its own, or another of
its processes, can continue it. The kernel counts up to 0.0003 s of an honest step later."""

PR_SET_CHILD_SUBREAPER = 36
"""Linux option of `prctl` by which orphaned descendants become children of this process."""

FAULTS, CHILDREN_FAULTS, CHILDREN_TICKS = (7, 9), (8, 10), (13, 14)
"""Indices in /proc/PID/stat, from the state on, for a process and for its ended children."""

Starter = Callable[[dict[str, Any], tuple[int, ...], Mapping[str, str]], int]
"""Function that starts a process with settings, inherited descriptors and an environment."""


def start_program(
    settings: dict[str, Any], descriptors: tuple[int, ...], environment: Mapping[str, str]
) -> int:
    """Start the step's program in a fresh interpreter, and return its process id.

    `settings` are the program's JSON argument, and `descriptors` the file descriptors that the
    program inherits.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    command = [sys.executable, "-m", "accel_bench_judge.subject_impl", json.dumps(settings)]
    process = subprocess.Popen(
        command,
        pass_fds=descriptors,
        env=dict(environment),
        cwd=settings["folders"][0],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    process.returncode = 0  # it is ended by `Subject.end`, and by nobody else
    return process.pid


class Usage(NamedTuple):
    """Resources that processes have used since their start, ended processes included."""

    faults: int
    """Number of page faults: a running process causes some, a stopped process none."""

    seconds: float
    """Seconds of CPU time of those that have not ended, to the nanosecond."""

    ended: float
    """Seconds of CPU time of those that have ended, in ticks of 0.01 s."""


class Subject:
    """Running process of a judged step, which computes only between a request and its answer."""

    alone = False
    """True once the processes that the step's process has started stay stopped for good."""

    def __init__(self, settings: dict[str, Any], memory: int, start: Starter) -> None:
        self._channel, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = {**settings, "channel": child.fileno(), "memory": memory}
        self._frozen: list[int] = []
        self._used: float | None = None  # CPU seconds when it last stood still
        with child:
            descriptors = (child.fileno(), memory)
            self.pid = start(settings, descriptors, environment_of(settings["folders"]))
        self.adopter = int(_stat(self.pid)[1])

    def wait(self) -> bytes:
        """Return the process's next answer in its binary format.

        Raises InvalidRunError if the process ends, reports an error, or does not answer in time.
        """
        limit = STEP_SECONDS if self.alone else WARMUP_SECONDS
        if not select.select([self._channel], [], [], limit)[0]:
            waits = "; processes that the step has started before stand still"
            waits = waits if self.alone and self._frozen else ""
            raise InvalidRunError([f"the step did not end within {limit:g} s{waits}"])
        try:
            reply = self._channel.recv(1024)
        except ConnectionError:
            reply = b""
        if not reply:
            raise InvalidRunError(["the process of the step ended"])
        if reply[:1] == b"e":
            raise InvalidRunError([f"the step raised {reply[1:].decode(errors='replace')}"])
        if len(reply) != ANSWER.size:
            raise InvalidRunError(["the process of the step answered what is no answer"])
        return reply

    def ask(self, request: bytes) -> bytes:
        """Continue the process with a request, and return its answer once it is stopped again.

        What it computes until it stands still is on the clock. Raises InvalidRunError as `wait`
        does, or if the process has computed since it stood still.
        """
        self.check_stillness()
        self._used = None
        for pid in (self.pid, *([] if self.alone else self._frozen)):
            self._signal(signal.SIGCONT, pid)
        try:
            self._channel.send(request)
        except OSError as error:
            raise InvalidRunError(["the process of the step ended"]) from error
        reply = self.wait()
        deadline = time.monotonic() + FREEZE_SECONDS
        while not self._stop([self.pid]):  # The step has ended: this takes the CPU of nothing.
            _wait_until(deadline)
        self._used = _cpu_seconds(self.pid)
        return reply

    def check_stillness(self) -> None:
        """Raise InvalidRunError if the process has computed since `ask` has stopped it."""
        if self._used is None or (used := _cpu_seconds(self.pid)) is None or _has_ended(self.pid):
            return
        if used - self._used > STOPPING_SECONDS:
            raise InvalidRunError(
                [f"the process of the step went on for {used - self._used:.2g} s after its answer"]
            )

    def freeze(self) -> None:
        """Stop the process and its descendants, and return once none of their threads can compute.

        Raises InvalidRunError if they cannot be stopped, or for an answer that was not requested.
        """
        deadline, seen = time.monotonic() + FREEZE_SECONDS, 0
        # Others may start a process, or let one go on, while they are looked at: so twice.
        while seen < (2 if self._frozen else 1):
            self._frozen = self.others()
            if self._stop([self.pid, *self._frozen]):
                seen += 1
            else:
                seen = 0
                _wait_until(deadline)
        if self._used is not None:  # The kernel may count the last moments before a stop later.
            self._used = _cpu_seconds(self.pid)
        if select.select([self._channel], [], [], 0)[0]:
            raise InvalidRunError(["the process of the step answered what nobody had asked"])

    def others(self) -> list[int]:
        """Return the ids of all other processes of the step: descendants of its process, and
        orphans that it left."""
        parents = dict(_parents())
        kept = {self.adopter, self.pid}
        pids, wanted = [], {self.adopter, self.pid}
        while wanted:
            wanted = {pid for pid, parent in parents.items() if parent in wanted} - kept
            kept |= wanted
            pids += sorted(wanted)
        return pids

    def others_usage(self) -> Usage:
        """Return page faults and CPU time of all the process's descendants, ended ones included."""
        own, others = _stat(self.pid), self.others()
        faults, ticks = _sum(own, CHILDREN_FAULTS), _sum(own, CHILDREN_TICKS)
        for fields in map(_stat, others):
            faults += _sum(fields, FAULTS + CHILDREN_FAULTS)
            ticks += _sum(fields, CHILDREN_TICKS)
        seconds = sum(_cpu_seconds(pid) or 0.0 for pid in others)
        return Usage(faults, seconds, ticks / os.sysconf("SC_CLK_TCK"))

    def end(self) -> bool:
        """Kill the process and its descendants, and return whether all have ended within
        `FREEZE_SECONDS`."""
        self._channel.close()
        deadline = time.monotonic() + FREEZE_SECONDS
        while (alive := self.alive()) and time.monotonic() < deadline:
            for pid in alive:
                self._signal(signal.SIGKILL, pid)
            time.sleep(0.001)
        if not alive:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
        return not alive

    def alive(self) -> list[int]:
        """Return the ids of the process and its descendants that have not ended."""
        return [pid for pid in (self.pid, *self.others()) if not _has_ended(pid)]

    def _stop(self, pids: Sequence[int]) -> bool:
        """Send SIGSTOP to processes, and return whether all of them stand still already."""
        for pid in pids:
            self._signal(signal.SIGSTOP, pid)
        return all(map(_stands_still, pids))

    def _signal(self, number: int, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def environment_of(folders: Sequence[str]) -> dict[str, str]:
    """Return the environment variables of a step's process.

    `folders` are the step's scratch folder and cache folder. Variables that look like secrets are
    left out. GPUs are hidden, since they would compute between steps while the process is stopped.
    """
    scratch, cache = folders
    return {
        **{name: value for name, value in os.environ.items() if not looks_secret(name)},
        "HOME": scratch,
        "TMPDIR": scratch,
        "TORCHINDUCTOR_CACHE_DIR": str(Path(cache, "inductor")),
        "CUDA_VISIBLE_DEVICES": "",
        "HIP_VISIBLE_DEVICES": "",
    }


def _stat(pid: int | str) -> list[str]:
    """Return the fields of /proc/PID/stat from the third (state) on; empty for no process."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def _parents() -> Iterator[tuple[int, int]]:
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(entry)):
            yield int(entry), int(fields[1])


def _has_ended(pid: int) -> bool:
    return _stat(pid)[:1] in ([], ["Z"], ["X"])


def _stands_still(pid: int) -> bool:
    """Return whether all threads of a process are stopped or gone."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    return all((_stat(f"{pid}/task/{thread}") or ["X"])[0] in "TZX" for thread in threads)


def _wait_until(deadline: float) -> None:
    """Let others run for a moment. Raises InvalidRunError after the deadline of a stop."""
    if time.monotonic() > deadline:
        raise InvalidRunError(["the process of the step could not be stopped"])
    os.sched_yield()


def _cpu_seconds(pid: int) -> float | None:
    """Return the CPU time of a process's threads to the nanosecond, or None for no process."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3)
    except OSError:
        return None


def _sum(fields: list[str], places: tuple[int, ...]) -> int:
    return sum(int(fields[place]) for place in places) if fields else 0

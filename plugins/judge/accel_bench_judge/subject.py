"""The process of a step, as the judge sees it: started, asked, frozen between steps, ended."""

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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from accel_bench.errors import InvalidRunError

STEP_SECONDS = 120.0
"""Longest time of an answer."""

FREEZE_SECONDS = 5.0
"""Longest time in which a stopped process stands still."""

PR_SET_CHILD_SUBREAPER = 36
"""Linux option of `prctl`: orphans among the descendants become children of this process."""

Starter = Callable[[dict[str, Any], tuple[int, ...], Mapping[str, str]], int]
"""Function of settings, inherited descriptors and environment that starts a process."""


def start_program(
    settings: dict[str, Any], descriptors: tuple[int, ...], environment: Mapping[str, str]
) -> int:
    """Start the step's program in a fresh interpreter, and return its process id."""
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


class Subject:
    """A running process of a step; it computes between a request and its answer alone."""

    def __init__(self, settings: dict[str, Any], memory: int, start: Starter) -> None:
        self._channel, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = {**settings, "channel": child.fileno(), "memory": memory}
        self._frozen: list[int] = []
        folder = settings["folders"][0]
        environment = {
            **os.environ,
            "HOME": folder,
            "TMPDIR": folder,
            "TORCHINDUCTOR_CACHE_DIR": str(Path(settings["folders"][-1], "inductor")),
        }
        with child:
            self.pid = start(settings, (child.fileno(), memory), environment)
        self.adopter = int(_stat(self.pid)[1])

    def wait(self) -> bytes:
        """Return the next answer. Raises InvalidRunError if none comes."""
        if not select.select([self._channel], [], [], STEP_SECONDS)[0]:
            raise InvalidRunError([f"the step did not end within {STEP_SECONDS:g} s"])
        try:
            answer = self._channel.recv(1024)
        except ConnectionError:
            answer = b""
        if not answer:
            raise InvalidRunError(["the process of the step ended"])
        if answer[:1] == b"e":
            raise InvalidRunError([f"the step raised {answer[1:].decode(errors='replace')}"])
        return answer

    def ask(self, request: bytes) -> bytes:
        """Let the process go on, and return its answer once it has been stopped again."""
        for pid in (self.pid, *self._frozen):
            self._signal(signal.SIGCONT, pid)
        try:
            self._channel.send(request)
        except OSError as error:
            raise InvalidRunError(["the process of the step ended"]) from error
        answer = self.wait()
        self._signal(signal.SIGSTOP)
        return answer

    def freeze(self) -> None:
        """Return once no thread of the process, nor any that it started, can compute.

        Raises InvalidRunError for a second answer, which nobody asked for.
        """
        deadline = time.monotonic() + FREEZE_SECONDS
        self._frozen = self.others()
        for pid in (self.pid, *self._frozen):
            self._signal(signal.SIGSTOP, pid)
            while not _stands_still(pid):
                if time.monotonic() > deadline:
                    raise InvalidRunError(["the process of the step could not be stopped"])
                time.sleep(0.0001)
        if select.select([self._channel], [], [], 0)[0]:
            raise InvalidRunError(["the process of the step answered what nobody had asked"])

    def others(self) -> list[int]:
        """Return ids of all processes that it started, of their children, and of orphans."""
        parents = dict(_parents())
        kept = {self.adopter, self.pid}
        found, wanted = [], {self.adopter, self.pid}
        while wanted:
            wanted = {pid for pid, parent in parents.items() if parent in wanted} - kept
            kept |= wanted
            found += sorted(wanted)
        return found

    def others_seconds(self) -> float:
        """Return the CPU seconds of all processes beside it that are alive."""
        return sum(_cpu_seconds(pid) for pid in self.others())

    def end(self) -> None:
        """Kill the process and all that it started, and wait for them."""
        self._channel.close()
        deadline = time.monotonic() + FREEZE_SECONDS
        while (alive := self.alive()) and time.monotonic() < deadline:
            for pid in alive:
                self._signal(signal.SIGKILL, pid)
            time.sleep(0.001)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def alive(self) -> list[int]:
        """Return ids of its processes that have not ended."""
        return [pid for pid in (self.pid, *self.others()) if not _has_ended(pid)]

    def _signal(self, number: int, pid: int | None = None) -> None:
        try:
            os.kill(pid or self.pid, number)
        except ProcessLookupError:
            pass


def _stat(pid: int | str) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; empty for a process that is gone."""
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
    """Return whether every thread is stopped or gone."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    return all((_stat(f"{pid}/task/{one}") or ["X"])[0] in "TtZX" for one in threads)


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process by the kernel's clock of it; 0 once it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0

"""Start, environment and end of a rank's process on this machine, with all its descendants."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from accel_bench.job import Job
from accel_bench.machine import reaper as reaper_program
from accel_bench.machine.info import available_cores
from accel_bench.result import Node

ELSEWHERE = (
    "ACCELERATE_",
    "ACCEL_BENCH_AGENTS",
    "ACCEL_BENCH_JOB",
    "ACCEL_BENCH_LOST",
    "ACCEL_BENCH_SECRET",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "MV2_",
    "OMPI_",
    "PET_",
    "PMIX_",
    "PMI_",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "TORCHELASTIC_",
)
"""Prefixes of environment variables of a launcher that has started the parent: a library that reads
them in a rank would join another process group, or take settings that no scenario has made."""

SWEEP_SECONDS = 10.0
"""Seconds that a reaper may take to end the processes that a rank has left behind."""


class LocalProcess:
    """Process of one rank on this machine, the leader of a session and process group of its own.

    On Linux a reaper, a small parent process, starts the rank. When the rank has ended, the reaper
    ends all processes that the rank left behind, and exits with the rank's status.
    """

    MARK = "ACCEL_BENCH_RUN_ID"
    """Environment variable that marks every process of a rank with its run and rank."""

    PROGRAM = "accel_bench.worker"
    """Module that Python runs as the rank."""

    def __init__(self, job: Job, rank: int, environment: Mapping[str, str] | None = None) -> None:
        """Start the process, by default with the environment that `rank_environment` returns."""
        self.rank = rank
        self.pid: int | None = None
        self.node: Node | None = None
        environment = environment or rank_environment(job, rank)
        numbers = str(rank), environment["LOCAL_RANK"]
        command = job.python_command("-m", self.PROGRAM, str(job.path()), *numbers)
        reading, writing = os.pipe()
        adopting = sys.platform == "linux"
        if adopting:
            reaper = [sys.executable, "-I", "-S", reaper_program.__file__]
            command = [*reaper, str(os.getpid()), str(writing), *command]
        with open(reading, "rb") as report:
            with job.log_path(rank).open("ab") as log, open(writing, "wb"):
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=dict(environment),
                    start_new_session=True,
                    pass_fds=(writing,) if adopting else (),
                )
            try:
                self.pid = int(report.read() or self._process.pid)
            except BaseException:
                self.sweep()
                raise

    def wait(self, seconds: float) -> None:
        """Sleep until the process has ended, at most the given seconds, without polling."""
        if hasattr(os, "pidfd_open") and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                descriptor = os.pidfd_open(self._process.pid)
                try:
                    select.select([descriptor], [], [], seconds)
                finally:
                    os.close(descriptor)
        elif self._process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        else:
            time.sleep(seconds)

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return self._process.poll()

    def dump_stack(self) -> None:
        """Make the worker write the stacks of its threads, by SIGUSR1 to its fault handler."""
        if self.pid and self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGUSR1)

    def signal(self, number: int) -> None:
        """Send a signal to the process group, and continue stopped processes to let them react."""
        for which in (number, signal.SIGCONT):
            if self.pid and self.poll() is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, which)

    def sweep(self) -> None:
        """End all processes that the rank left behind, and wait until its reaper has ended them."""
        if sys.platform != "linux":
            self.signal(signal.SIGKILL)
            return
        self._process.terminate()
        try:
            self._process.wait(SWEEP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()


@dataclass(frozen=True)
class NodePlace:
    """Position of a rank on its node: its device and its share of the threads."""

    local_rank: int
    """Number of the rank on its node, or index of its device if it sees only some of them."""

    local_size: int

    threads: int
    """Number of CPU threads of the rank if the scenario sets none."""


def rank_environment(job: Job, rank: int, place: NodePlace | None = None) -> dict[str, str]:
    """Return a rank's environment variables: the parent's, the scenario's, `RANK` and similar ones.
    `place` is the rank's position on its node; with None all ranks are on this machine."""
    scenario = job.experiment.scenario
    size = job.world_size
    place = place or NodePlace(rank, size, max(1, available_cores() // size))
    threads = scenario.resources.threads or place.threads
    defaults = {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        # The worker sets it for other launchers; one that is preloaded reads it before that.
        "OMP_WAIT_POLICY": "passive",
        "TOKENIZERS_PARALLELISM": "true",
    }
    ours = {
        LocalProcess.MARK: f"{job.run_id}/{rank}",
        "ACCEL_BENCH_PARENT": str(os.getpid()),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_size),
        "PYTHONUNBUFFERED": "1",
        "RANK": str(rank),
        "WORLD_SIZE": str(job.world_size),
    }
    inherited = {name: os.environ[name] for name in os.environ if not name.startswith(ELSEWHERE)}
    return {**defaults, **inherited, **scenario.environment, **ours}

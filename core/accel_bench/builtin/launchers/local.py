"""`local`: starts the ranks as processes of this machine, each in a session of its own."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import psutil

import accel_bench.builtin.launchers.reaper as reaper_program
from accel_bench import Job, Options, Plugin, RankProcess, available_cores, hookimpl, python_command

MARK = "ACCEL_BENCH_RUN_ID"
"""Environment variable by which everything that a run has started is recognised."""


class LocalProcess:
    """One rank, the leader of a session and process group of its own."""

    def __init__(self, job: Job, rank: int) -> None:
        self.rank = rank
        self._mark = f"{job.run_id}/{rank}"
        arguments = ("-m", "accel_bench.worker", str(job.path()), str(rank), str(rank))
        with job.log_path(rank).open("ab") as log:
            self._process = subprocess.Popen(
                python_command(*arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=rank_environment(job, rank, self._mark),
                start_new_session=True,
            )
        self.pid: int | None = self._process.pid

    def wait(self, seconds: float) -> None:
        """Sleep until the process ends, without waking up to look."""
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
        """Return the exit code, or None while it runs."""
        return self._process.poll()

    def dump_stack(self) -> None:
        """Have the worker write all its stacks, as its fault handler does on SIGUSR1."""
        if self.poll() is None:
            self._process.send_signal(signal.SIGUSR1)

    def signal(self, number: int) -> None:
        """Signal the group; a stopped process is continued, so that it can act on it."""
        for which in (number, signal.SIGCONT):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, which)

    def sweep(self) -> None:
        """Kill what is left of the group, and what left the group but carries the run's mark."""
        self.signal(signal.SIGKILL)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != os.getpid() and process.environ().get(MARK) == self._mark:
                    process.kill()


class Local(Plugin[Options]):
    """Starts one process for each rank on this machine."""

    single_node = True

    @hookimpl
    def launch_ranks(self, job: Job) -> Sequence[RankProcess]:
        """Start the ranks; none is left behind when one cannot be started."""
        start_reaper(os.getpid())
        started: list[LocalProcess] = []
        try:
            for rank in range(job.world_size):
                started.append(LocalProcess(job, rank))
        except BaseException:
            for process in started:
                process.sweep()
            raise
        return started


@cache
def start_reaper(parent: int) -> None:
    """Start, once for each parent, what ends the workers' children should the parent be killed."""
    if not Path("/proc/self/environ").exists():
        return
    reaper = subprocess.Popen(
        [sys.executable, "-I", "-S", reaper_program.__file__, str(parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    atexit.register(_dismiss, reaper)


def _dismiss(reaper: subprocess.Popen[bytes]) -> None:
    reaper.kill()
    reaper.communicate()


def rank_environment(job: Job, rank: int, mark: str) -> dict[str, str]:
    """Return the parent's environment, the scenario's changes, and what all stacks get alike."""
    scenario = job.experiment.scenario
    threads = scenario.resources.threads or max(1, available_cores() // job.world_size)
    defaults = {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "true",
    }
    ours = {
        MARK: mark,
        "ACCEL_BENCH_PARENT": str(os.getpid()),
        "LOCAL_RANK": str(rank),
        "PYTHONUNBUFFERED": "1",
        "RANK": str(rank),
        "WORLD_SIZE": str(job.world_size),
    }
    return {**defaults, **os.environ, **scenario.environment, **ours}

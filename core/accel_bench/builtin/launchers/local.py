"""`local`: starts the ranks as processes of this machine, each in a session of its own."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import accel_bench.builtin.launchers.reaper as reaper_program
from accel_bench import Job, Options, Plugin, RankProcess, available_cores, hookimpl

MARK = "ACCEL_BENCH_RUN_ID"
"""Environment variable by which what a run has started is recognised: run and rank."""

SWEEP_SECONDS = 10.0
"""How long a reaper may take to end what a rank has left behind."""


class LocalProcess:
    """One rank, the leader of a session and process group of its own.

    On Linux it is run by a reaper, which ends with it, in the same way, and then has ended whatever
    the rank has started.
    """

    def __init__(self, job: Job, rank: int) -> None:
        self.rank = rank
        self.pid: int | None = None
        command = job.python_command(
            "-m", "accel_bench.worker", str(job.path()), str(rank), str(rank)
        )
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
                    env=rank_environment(job, rank),
                    start_new_session=True,
                    pass_fds=(writing,) if adopting else (),
                )
            try:
                self.pid = int(report.read() or self._process.pid)
            except BaseException:
                self.sweep()
                raise

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
        if self.pid and self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGUSR1)

    def signal(self, number: int) -> None:
        """Signal the group; a stopped process is continued, so that it can act on it."""
        for which in (number, signal.SIGCONT):
            if self.pid and self.poll() is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, which)

    def sweep(self) -> None:
        """Wait until the reaper has ended what the rank has left behind, as SIGTERM has it do."""
        if sys.platform != "linux":
            self.signal(signal.SIGKILL)
            return
        self._process.terminate()
        try:
            self._process.wait(SWEEP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()


class Local(Plugin[Options]):
    """Starts one process for each rank on this machine."""

    single_node = True

    @hookimpl
    def launch_ranks(self, job: Job) -> Sequence[RankProcess]:
        """Start the ranks; none is left behind when one cannot be started."""
        started: list[LocalProcess] = []
        try:
            for rank in range(job.world_size):
                started.append(LocalProcess(job, rank))
        except BaseException:
            for process in started:
                process.sweep()
            raise
        return started


def rank_environment(job: Job, rank: int) -> dict[str, str]:
    """Return the parent's environment, the scenario's changes, and what all stacks get alike."""
    scenario = job.experiment.scenario
    threads = scenario.resources.threads or max(1, available_cores() // job.world_size)
    defaults = {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        # The worker sets it for other launchers; one that is preloaded reads it before that.
        "OMP_WAIT_POLICY": "passive",
        "TOKENIZERS_PARALLELISM": "true",
    }
    ours = {
        MARK: f"{job.run_id}/{rank}",
        "ACCEL_BENCH_PARENT": str(os.getpid()),
        "LOCAL_RANK": str(rank),
        "PYTHONUNBUFFERED": "1",
        "RANK": str(rank),
        "WORLD_SIZE": str(job.world_size),
    }
    return {**defaults, **os.environ, **scenario.environment, **ours}

"""Ranks, as their launcher starts them and their parent sees them; what observes them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import accel_bench.reaper as reaper_program
from accel_bench.machine.info import available_cores

if TYPE_CHECKING:
    from accel_bench.job import Job
    from accel_bench.result import Metric, Node, RankResult

INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals by which a user, a system or a terminal that closes ends a session and its ranks."""

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
"""Beginnings of variables of a launcher that has started our parent: a library that reads them in
a rank would join another process group, or take settings that no scenario has made."""

SWEEP_SECONDS = 10.0
"""How long a reaper may take to end what a rank has left behind."""


class RankProcess(Protocol):
    """A rank that has been started. Signals reach it and every process that it has started."""

    rank: int
    """Global rank."""

    pid: int | None
    """Its process id on this machine; None where it runs on another."""

    def wait(self, seconds: float) -> None:
        """Wait until the process has ended, at most that many seconds."""

    def poll(self) -> int | None:
        """Return the exit code, negative for the signal that ended it; None while it runs."""

    def dump_stack(self) -> None:
        """Have the process write the stacks of its threads to its log."""

    def signal(self, number: int) -> None:
        """Send a signal to the process and to everything that it has started."""

    def sweep(self) -> None:
        """End whatever the process has left behind."""


class RelayedRank(RankProcess, Protocol):
    """A rank that is observed by way of another process; its heartbeat page may lag behind."""

    node: Node | None
    """Where it runs."""

    lost: str
    """Why it can no longer be observed, with the name of its node; empty while it can be."""


class Allocation(Protocol):
    """Processes on one or several nodes that are kept for all runs of a session."""

    exit_code: int | None
    """What the command ends with at once, since another process has done its work; None where this
    process goes on as the parent."""

    @property
    def cores(self) -> int | None:
        """Return the cores that the processes of a node may use together, on the smallest node.

        None where they are those that the parent may use.
        """

    def close(self) -> None:
        """Give the processes back; called once, however the session ends."""


class Place(Allocation, Protocol):
    """A part of an allocation, on devices that no other part has."""

    def is_ready(self) -> bool:
        """Return whether all its processes are there, after waiting for what replaces lost ones."""

    def node_names(self) -> Sequence[str]:
        """Return the names of its nodes; of other ones once a lost node is replaced."""


class DividedAllocation(Allocation, Protocol):
    """Processes of which some run one sweep point while others run another."""

    places: Sequence[Place]
    """Its parts; each sweep point has all its rounds on one of them, while that is there."""

    def interrupt(self) -> None:
        """Wait for nothing any more: the session ends."""


class Observer(Protocol):
    """Watches the ranks of one attempt from the parent, in threads or processes of its own."""

    def finish(self, results: Mapping[int, RankResult]) -> Iterable[Metric]:
        """Stop, and return the metrics.

        Called once after the last rank has gone, also when the run was stopped or has failed;
        `results` holds what each rank has written, those that wrote nothing are missing. It gets
        seconds, not minutes.
        """


class LiveObserver(Observer, Protocol):
    """An observer of which something is shown while the ranks run."""

    live: str
    """A few words beside the step in the progress line, such as `utilization.gpu 97 %`. It is read
    several times a second by what watches over the ranks: keep the last reading at hand."""


class LocalProcess:
    """One rank, the leader of a session and process group of its own.

    On Linux it is run by a reaper, which ends with it, in the same way, and then has ended whatever
    the rank has started.
    """

    MARK = "ACCEL_BENCH_RUN_ID"
    """Environment variable by which what a run has started is recognised: run and rank."""

    def __init__(self, job: Job, rank: int, environment: Mapping[str, str] | None = None) -> None:
        """Start it; `environment` is that of `rank_environment`, which holds its local rank."""
        self.rank = rank
        self.pid: int | None = None
        self.node: Node | None = None
        environment = environment or rank_environment(job, rank)
        numbers = str(rank), environment["LOCAL_RANK"]
        command = job.python_command("-m", "accel_bench.worker", str(job.path()), *numbers)
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


@dataclass(frozen=True)
class NodePlace:
    """Where a rank runs among those of its node."""

    local_rank: int
    """Its number on the node, or the index of its device where it sees only some of the node's."""

    local_size: int

    threads: int
    """Its threads where the scenario does not say."""


def rank_environment(job: Job, rank: int, place: NodePlace | None = None) -> dict[str, str]:
    """Return the parent's environment, the scenario's changes, and what all stacks get alike.

    Without a `place` all ranks are on this machine.
    """
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

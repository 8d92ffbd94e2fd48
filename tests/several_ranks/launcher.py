"""A launcher whose ranks are children of the process that runs the program.

They import nothing anew: a worker of its own takes six seconds for torch and transformers.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from time import monotonic, sleep
from typing import Any

from kit import EndedRank

from accel_bench import Options, Plugin, hookimpl, rank_environment
from accel_bench.documents.files import write_atomically
from accel_bench.job import Job
from accel_bench.plugins.manager import activate, with_observers
from accel_bench.worker import settings
from accel_bench.worker.heartbeat import Heartbeat
from accel_bench.worker.measurement import measure

POLL_SECONDS = 0.02
"""Time between two looks at a child that still runs."""


class Forked(Plugin[Options]):
    """A launcher whose ranks are children of this process."""

    single_node = True

    @hookimpl
    def launch_ranks(self, job: Job) -> Sequence[Any]:
        """Fork one child a rank, and wait until all have ended."""
        gc.freeze()  # A child's collector would copy all that the tests hold.
        children = [_fork(job, rank) for rank in range(job.world_size)]
        gc.unfreeze()
        deadline = monotonic() + job.experiment.scenario.measure.timeout_seconds
        return [ForkedRank(n, _exit_code(child, deadline)) for n, child in enumerate(children)]


class ForkedRank(EndedRank):
    """The handle of a child that has ended."""

    def __init__(self, rank: int, code: int) -> None:
        self.rank = rank
        self._code = code

    def poll(self) -> int | None:
        """Return the child's exit code; negative for the signal that ended it."""
        return self._code


def _exit_code(child: int, deadline: float) -> int:
    """Wait until a child ends, and return how; at the deadline it is killed."""
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if monotonic() >= deadline:
            os.kill(child, signal.SIGKILL)
        sleep(POLL_SECONDS)


def _fork(job: Job, rank: int) -> int:
    child = os.fork()
    if child:
        return child
    try:
        with job.log_path(rank).open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", 1) for number in (1, 2))  # not the tests'
        environment = rank_environment(job, rank)
        os.environ.clear()
        os.environ.update(environment)
        _work(job, rank)
    except BaseException:
        os.write(2, traceback.format_exc().encode())  # `sys.stderr` may be the tests' own.
        os._exit(1)
    os._exit(0)


def _work(job: Job, rank: int) -> None:
    """Do what `python -m accel_bench.worker` does."""
    warnings.simplefilter("default")  # A test makes errors of them.
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(name)s %(message)s", force=True
    )
    settings.set_environment({})
    sent = Job.model_validate_json(job.path().read_bytes())
    active = activate(sent.experiment.scenario, sent.experiment.stack, allow_torch=True)
    active = with_observers(active, sent.observers)
    result = measure(sent, rank, rank, active, Heartbeat(job.heartbeat_path(rank)))
    write_atomically(job.result_path(rank), result.model_dump_json())

"""A launcher whose ranks are children of the process that runs the program.

They import nothing anew: a worker of its own takes six seconds for torch and transformers.
"""

from __future__ import annotations

import gc
import os
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

from accel_bench import Options, Plugin, hookimpl
from accel_bench.documents.files import write_atomically
from accel_bench.job import Job
from accel_bench.plugins.manager import activate
from accel_bench.testing.in_process import EndedRank
from accel_bench.worker import settings
from accel_bench.worker.heartbeat import Heartbeat
from accel_bench.worker.measurement import measure


class Forked(Plugin[Options]):
    """A launcher whose ranks are children of this process."""

    single_node = True

    @hookimpl
    def launch_ranks(self, job: Job) -> Sequence[Any]:
        """Fork one child a rank, and wait until all have ended."""
        gc.freeze()  # A child's collector would copy all that the tests hold.
        children = [_fork(job, rank) for rank in range(job.world_size)]
        gc.unfreeze()
        for child in children:
            os.waitpid(child, 0)
        ranks = [EndedRank() for _ in children]
        for number, rank in enumerate(ranks):
            rank.rank = number
        return ranks


def _fork(job: Job, rank: int) -> int:
    child = os.fork()
    if child:
        return child
    try:
        with job.log_path(rank).open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        _work(job, rank)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _work(job: Job, rank: int) -> None:
    """Do what `python -m accel_bench.worker` does."""
    warnings.simplefilter("default")  # A test makes errors of them.
    settings.set_environment()
    sent = Job.model_validate_json(job.path().read_bytes())
    active = activate(sent.experiment.scenario, sent.experiment.stack, allow_torch=True)
    result = measure(sent, rank, rank, active, Heartbeat(job.heartbeat_path(rank)))
    write_atomically(job.result_path(rank), result.model_dump_json())

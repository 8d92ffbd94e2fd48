"""Start of a worker: `python -m accel_bench.worker JOB.json RANK LOCAL_RANK`."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
from pathlib import Path

from accel_bench.documents.files import PRIVATE, write_atomically
from accel_bench.errors import AccelBenchError
from accel_bench.job import Job
from accel_bench.machine.parent import die_with_parent
from accel_bench.plugins.active import ActivePlugins
from accel_bench.plugins.manager import activate, with_observers
from accel_bench.result import RankResult, Status
from accel_bench.worker import failure, settings
from accel_bench.worker.heartbeat import Heartbeat
from accel_bench.worker.measurement import measure


def main(arguments: list[str]) -> int:
    """Run a rank, given job file, rank and local rank; write its result file, and return 0."""
    job_file, rank, local_rank = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    die_with_parent(int(os.environ.get("ACCEL_BENCH_PARENT", "0")))
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s"
    )
    job = Job.model_validate_json(job_file.read_bytes())
    settings.set_environment(job.experiment.scenario.environment)
    heartbeat = Heartbeat(job.heartbeat_path(rank))
    try:
        active = _activate(job, heartbeat)
    except (AccelBenchError, KeyboardInterrupt) as error:
        # A plugin that breaks here could be activated in the parent.
        stopped = isinstance(error, KeyboardInterrupt)
        result = RankResult(
            rank=rank,
            status=Status.INTERRUPTED if stopped else Status.PLUGIN_ERROR,
            reasons=failure.reasons_of(error),
            phase="activation",
            error=failure.failure_of(error),
        )
    else:
        result = measure(job, rank, local_rank, active, heartbeat)
    write_atomically(job.result_path(rank), result.model_dump_json(), mode=PRIVATE)
    return 0


def _activate(job: Job, heartbeat: Heartbeat) -> ActivePlugins:
    """Activate the plugins; the heartbeat shows which one is loaded, in case the process dies."""
    heartbeat.phase = "activation"
    scenario, stack = job.experiment.scenario, job.experiment.stack
    active = activate(scenario, stack, allow_torch=True, on_plugin=heartbeat.call)
    active = with_observers(active, job.observers)
    heartbeat.call(0)
    return active


def _interrupt(number: int, frame: object) -> None:
    """Raise KeyboardInterrupt for a signal, so that the `close_run` hooks of plugins are called."""
    raise KeyboardInterrupt(signal.Signals(number).name)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # A library's threads or atexit handlers may crash or hang a finished process: the result is
    # written.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

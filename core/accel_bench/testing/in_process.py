"""Run a planned experiment in this process, with the product's own code."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import secrets
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from accel_bench.documents.files import write_atomically
from accel_bench.errors import WorkerError
from accel_bench.job import Job
from accel_bench.launcher import RankProcess
from accel_bench.planning.plan import Planned
from accel_bench.plugin import Options, Plugin, hookimpl
from accel_bench.plugins.manager import ActivePlugin, ActivePlugins, activate
from accel_bench.result import RankResult, Result, Status
from accel_bench.run import Run
from accel_bench.runner.attempt import make_attempt, run_attempt
from accel_bench.testing.process_state import changes, preserved, read_process_state
from accel_bench.testing.tiny import this_machine
from accel_bench.worker import settings
from accel_bench.worker.heartbeat import Heartbeat
from accel_bench.worker.measurement import measure

SESSION = "testing"
"""The session of every result of the kit: so that two of them can be compared."""


@dataclass
class Execution:
    """The result of an experiment, as the product would have stored it, and what it left behind."""

    result: Result

    left: list[str] = field(default_factory=list)
    """What is still changed in the process after `close_run`, in words."""


class InProcess(Plugin[Options]):
    """A launcher whose only rank is the process that calls it."""

    def __init__(self, options: Options, name: str = "", fails: bool = False) -> None:
        super().__init__(options, name)
        self.fails = fails
        self.left: list[str] = []
        self.stopped = False

    @hookimpl
    def launch_ranks(self, job: Job) -> Sequence[RankProcess]:
        """Do the rank's work here and now, and return a process that has ended."""
        sent = Job.model_validate_json(job.path().read_bytes())
        with _logging_to(job.log_path(0)):
            result = self._work(sent)
        write_atomically(job.result_path(0), result.model_dump_json())
        self.stopped = result.status is Status.INTERRUPTED
        return [EndedRank()]

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        """End the run here, after this hook of all others, where it is to fail."""
        if self.fails:
            raise WorkerError("the kit ends this run, to see what is left of one that fails early")

    def _work(self, job: Job) -> RankResult:
        """Do what `python -m accel_bench.worker` does, but for the process."""
        settings.set_environment()
        heartbeat = Heartbeat(job.heartbeat_path(0))
        # Before any plugin is made: what it does in `__init__` must be undone too.
        before = read_process_state()
        try:
            active = activate(job.experiment.scenario, job.experiment.stack, allow_torch=True)
            with_ours = ActivePlugins([*active.plugins, _active(self)])
            return measure(job, 0, 0, with_ours, heartbeat)
        finally:
            precision = job.experiment.scenario.train.matmul_precision
            self.left = changes(before, read_process_state(), precision)


class EndedRank:
    """The handle of a rank that has ended when it is returned."""

    rank = 0
    pid: int | None = os.getpid()

    def wait(self, seconds: float) -> None:
        """Return at once."""

    def poll(self) -> int | None:
        """Return the exit code of a rank that has written its result."""
        return 0

    def dump_stack(self) -> None:
        """Do nothing: there is none any more."""

    def signal(self, number: int) -> None:
        """Do nothing: there is no process to signal."""

    def sweep(self) -> None:
        """Do nothing: it left no process behind."""


def run_in_process(planned: Planned, root: Path) -> Execution:
    """Prepare and measure one experiment in this process, which is as before when it returns.

    The result is that of the preparation where that failed, as in the product. Ctrl-C is raised
    again.
    """
    left: list[str] = []
    if planned.active.implements("prepare_experiment"):
        preparation = _attempt(planned, root, "prepare")
        if not preparation.result.status.completed:
            return preparation
        left = preparation.left
    execution = _attempt(planned, root, "measure")
    return Execution(execution.result, list(dict.fromkeys([*left, *execution.left])))


def fail_in_process(planned: Planned, root: Path) -> Execution:
    """Start to measure an experiment, and end it after `prepare_process` of all its plugins."""
    return _attempt(planned, root, "measure", fails=True)


def _attempt(
    planned: Planned, root: Path, purpose: Literal["prepare", "measure"], fails: bool = False
) -> Execution:
    """Make a folder and an attempt, then do everything that the product does with them."""
    folder = root / f"{SESSION}-{secrets.token_hex(4)}"
    folder.mkdir(parents=True)
    attempt = make_attempt(
        root, folder, SESSION, this_machine(), purpose=purpose, experiment=planned.experiment
    )
    here = InProcess(Options(), "in-process", fails)
    others = [one for one in planned.active.plugins if one.slot != "launcher"]
    active = ActivePlugins([*others, _active(here)])
    with contextlib.ExitStack() as stack:
        stack.enter_context(preserved())
        stack.enter_context(warnings.catch_warnings())
        # The collector would spend time on what the tests hold: a worker has nothing of it.
        gc.freeze()
        stack.callback(gc.unfreeze)
        # In the product a library's warning ends up in a log, whatever the tests make of it.
        warnings.simplefilter("default")
        ours = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        os.environ.update({**planned.experiment.scenario.environment, **ours})
        result = run_attempt(attempt, active, lambda _: None, lambda found: found)
    if here.stopped:
        raise KeyboardInterrupt
    return Execution(result, here.left)


def _active(here: InProcess) -> ActivePlugin:
    # To be the last one: its hooks are called after those of all others.
    return ActivePlugin(here, here.name, "launcher", "accel-bench")


@contextlib.contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Write our log to the rank's file within the block."""
    logger: Any = logging.getLogger("accel_bench")
    handler, level = logging.FileHandler(path, encoding="utf8"), logger.level
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()

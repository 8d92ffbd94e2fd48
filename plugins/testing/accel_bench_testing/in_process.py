"""Execution of a planned experiment in this process, by the same code as in `accel-bench run`."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import secrets
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from accel_bench import RankProcess
from accel_bench.documents.files import write_atomically
from accel_bench.errors import WorkerError
from accel_bench.job import Job
from accel_bench.planning.plan import Planned
from accel_bench.plugin import Options, Plugin, hookimpl
from accel_bench.plugins.active import ActivePlugin, ActivePlugins
from accel_bench.plugins.manager import activate
from accel_bench.result import RankResult, Result, Status, Window
from accel_bench.run_context import Run
from accel_bench.runner.attempt import make_attempt, run_attempt
from accel_bench.runner.update_files import PendingUpdates
from accel_bench.worker import settings
from accel_bench.worker.heartbeat import Heartbeat
from accel_bench.worker.measurement import measure
from accel_bench_testing.process_state import (
    ProcessState,
    changes,
    preserved,
    read_process_state,
    replaced_measuring,
)
from accel_bench_testing.tiny import this_machine
from accel_bench_testing.traces import note_processes, watch

SESSION = "testing"
"""Session id of all results of the test kit, so that any two can be compared."""


@dataclass
class Execution:
    """Result of an experiment, as `accel-bench run` would store it, with its side effects."""

    result: Result

    left: list[str] = field(default_factory=list)
    """Sentences on changes in the process that remain after `close_run`; empty unless watched."""

    replaced: list[str] = field(default_factory=list)
    """Sentences on clocks and the like that were found replaced during the measured steps."""

    imported: list[str] = field(default_factory=list)
    """Packages imported between `prepare_process` and the measured steps."""

    printed: dict[str, str] = field(default_factory=dict)
    """First text that a plugin's module has printed, by module."""


class InProcess(Plugin[Options]):
    """Launcher whose only rank is the calling process."""

    def __init__(
        self, options: Options, name: str = "", fails: bool = False, watched: bool = False
    ) -> None:
        super().__init__(options, name)
        self.fails = fails
        self.watched = watched
        self.left: list[str] = []
        self.initial: ProcessState | None = None
        self.replaced: list[str] = []
        self.modules: frozenset[str] = frozenset()
        self.imported: list[str] = []
        self.stopped = False

    @hookimpl
    def launch_ranks(self, job: Job) -> Sequence[RankProcess]:
        """Run the job's rank in this process, and return the handle of an ended process."""
        sent = Job.model_validate_json(job.path().read_bytes())
        with _logging_to(job.log_path(0)):
            result = self._work(sent)
        write_atomically(job.result_path(0), result.model_dump_json())
        self.stopped = result.status is Status.INTERRUPTED
        return [EndedRank()]

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        """Remember the imported modules. Raise WorkerError in a run that is meant to fail after
        this hook."""
        self.modules = frozenset(sys.modules)
        if self.fails:
            raise WorkerError("the kit ends this run, to see what is left of one that fails early")

    @hookimpl
    def start_metrics(self, run: Run) -> None:
        """Record which measuring functions, such as clocks, are replaced before the measured steps,
        and which packages were imported since `prepare_process`."""
        self._compare_measuring()
        self.imported = sorted(
            {module.partition(".")[0] for module in {*sys.modules} - self.modules}
        )

    @hookimpl
    def finish_metrics(self, run: Run, window: Window) -> None:
        """Record which measuring functions, such as clocks, are replaced after the measured
        steps."""
        self._compare_measuring()

    def _compare_measuring(self) -> None:
        if self.initial:
            self.replaced += replaced_measuring(self.initial)

    def _work(self, job: Job) -> RankResult:
        """Run the code of `python -m accel_bench.worker` in this process, and return the rank's
        result."""
        settings.set_environment(job.experiment.scenario.environment)
        heartbeat = Heartbeat(job.heartbeat_path(0))
        # Before any plugin is made: what it does in `__init__` must be undone too.
        self.initial = read_process_state() if self.watched else None
        try:
            active = activate(job.experiment.scenario, job.experiment.stack, allow_torch=True)
            with_ours = ActivePlugins([*active.plugins, _active(self)])
            return measure(job, 0, 0, with_ours, heartbeat)
        finally:
            note_processes()
            precision = job.experiment.scenario.train.matmul_precision
            if self.initial:
                self.left = changes(self.initial, read_process_state(), precision)


class EndedRank:
    """Handle of a rank that has already ended."""

    rank = 0
    pid: int | None = os.getpid()

    def wait(self, seconds: float) -> None:
        """Return without waiting, as the rank has ended."""

    def poll(self) -> int | None:
        """Return exit code 0, as the rank has written its result."""
        return 0

    def dump_stack(self) -> None:
        """Do nothing, as there is no stack to dump."""

    def signal(self, number: int) -> None:
        """Do nothing, as there is no process to signal."""

    def sweep(self) -> None:
        """Do nothing, as no process is left behind."""


def run_in_process(
    planned: Planned, root: Path, watched: bool = False, changes: PendingUpdates | None = None
) -> Execution:
    """Prepare and measure one planned experiment in this process, and restore the process's state.

    Returns the measured execution, or the preparation's execution if that fails. `root` is the
    folder for files. Changes of the process are only recorded if `watched`. `changes` compares the
    run's weight update with other runs' updates. Ctrl-C is raised again.
    """
    left: list[str] = []
    if planned.active.implements("prepare_experiment"):
        preparation = _attempt(planned, root, _here(watched=watched), "prepare")
        if not preparation.result.status.completed:
            return preparation
        left = preparation.left
    execution = _attempt(planned, root, _here(watched=watched), changes=changes)
    execution.left = list(dict.fromkeys([*left, *execution.left]))
    return execution


def fail_in_process(planned: Planned, root: Path) -> Execution:
    """Run an experiment that is made to fail after `prepare_process` of all its plugins, and return
    the execution."""
    return _attempt(planned, root, _here(fails=True, watched=True))


def _here(fails: bool = False, watched: bool = False) -> InProcess:
    return InProcess(Options(), "in-process", fails, watched)


def _attempt(
    planned: Planned,
    root: Path,
    here: InProcess,
    purpose: Literal["prepare", "measure"] = "measure",
    changes: PendingUpdates | None = None,
) -> Execution:
    """Run an attempt in a new folder below `root`, with all checks of `accel-bench run`, and return
    the execution.

    `here` is the launcher. `changes` compares the run's weight update with other runs' updates.
    """
    folder = root / f"{SESSION}-{secrets.token_hex(4)}"
    folder.mkdir(parents=True)
    (caches := root / "cache").mkdir(exist_ok=True)
    fields: dict[str, Any] = {"cache_folder": str(caches), "experiment": planned.experiment}
    fields["update_bytes"] = changes.room(root) if changes and purpose == "measure" else 0
    attempt = make_attempt(root, folder, SESSION, this_machine(), purpose=purpose, **fields)
    others = [plugin for plugin in planned.active.plugins if plugin.slot != "launcher"]
    active = ActivePlugins([*others, _active(here)])
    with _as_in_a_worker(planned.experiment.scenario.environment):
        traces = watch(attempt.job) if here.watched else None
        path = attempt.job.update_path()
        result = run_attempt(
            attempt,
            active,
            lambda _: None,
            lambda measured: changes.add(path, measured) if changes else measured,
        )
        here.left += traces.left() if traces else ()
        printed = traces.printed if traces else {}
    if (
        here.stopped and not here.watched
    ):  # In the kit's own process it was the plugin that raised it.
        raise KeyboardInterrupt
    # What was not put back is named once.
    replaced = [text for text in here.replaced if f"{text} and not put back" not in here.left]
    return Execution(result, here.left, list(dict.fromkeys(replaced)), here.imported, printed)


@contextlib.contextmanager
def _as_in_a_worker(environment: Mapping[str, str]) -> Iterator[None]:
    """Give this process, within the block, a worker's variables, warnings and garbage collection.

    `environment` are the scenario's environment variables.
    """
    with preserved(), warnings.catch_warnings():
        # The collector would spend time on what the tests hold: a worker has nothing of it.
        gc.freeze()
        try:
            # In the product a library's warning ends up in a log, whatever the tests make of it.
            warnings.simplefilter("default")
            ours = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
            os.environ.update({**environment, **ours})
            yield
        finally:
            gc.unfreeze()


def _active(here: InProcess) -> ActivePlugin:
    # To be the last one: its hooks are called after those of all others.
    return ActivePlugin(here, here.name, "launcher", "accel-bench")


@contextlib.contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Write accel-bench's log to the rank's log file `path` within the block."""
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

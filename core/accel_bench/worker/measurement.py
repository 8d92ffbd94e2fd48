"""Course of one rank's run: prepare, build, warm up, measure, collect evidence, close.

The file is long because it has the functions of a run in the order of their calls.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticSerializationError, to_json

from accel_bench.documents.files import PRIVATE, write_atomically
from accel_bench.engine import Engine, Stopwatch
from accel_bench.errors import InvalidRunError
from accel_bench.job import HEARTBEAT_STEP, MEASURE, PREPARE, PURPOSES, WRITES_RESULT, Job
from accel_bench.machine.devices import device_type
from accel_bench.machine.info import Device
from accel_bench.machine.scheduling import read_scheduling
from accel_bench.modeling.checkpointing import enable_gradient_checkpointing
from accel_bench.plugins.active import (
    ActivePlugin,
    ActivePlugins,
    attribute_errors_to,
    task_of,
    wrong_return_type,
)
from accel_bench.plugins.constraints import refuse_architecture
from accel_bench.plugins.doors import find_entry
from accel_bench.result import RankResult, Window
from accel_bench.run_context import Run
from accel_bench.scenario.settings import MOST_DISCARDED
from accel_bench.worker import failure, settings
from accel_bench.worker.after_window import PaceSteps, StepStage
from accel_bench.worker.answers import is_model, require
from accel_bench.worker.clocks import clock_of
from accel_bench.worker.generated import answers_of, own_prompts
from accel_bench.worker.heartbeat import Heartbeat
from accel_bench.worker.learning import LearningSteps, make_evaluator
from accel_bench.worker.observed_steps import ObservedSteps
from accel_bench.worker.read_ahead import read_ahead
from accel_bench.worker.record import (
    RankRecord,
    changed_at_import,
    check_window,
    collect_evidence,
    collect_metrics,
    rank_result,
)
from accel_bench.worker.stopwatch import WindowMonitor, WindowStopwatch
from accel_bench.worker.verify.synchronizations import SynchronizationCounter

if TYPE_CHECKING:
    from accel_bench.worker.communication import CommunicationProbe
    from accel_bench.worker.verify.generation import GenerationCheck
    from accel_bench.worker.verify.verification import Verification

REHEARSAL_STEPS = 2
"""Untimed steps of a `prepare` process whose plugin asked for a rehearsal."""


def measure(
    job: Job, rank: int, local_rank: int, active: ActivePlugins, heartbeat: Heartbeat
) -> RankResult:
    """Carry out the job's purpose, such as to measure, on this rank; always return a result."""
    run = make_run(job, rank, local_rank)
    numbers = {id(plugin): number for number, plugin in enumerate(active.plugins, 1)}
    run.on_calling = lambda plugin: heartbeat.call(numbers.get(id(plugin), 0))
    record = RankRecord(degraded=changed_at_import(active))
    error: BaseException | None = None
    phase = ""
    try:
        if job.purpose == PREPARE:
            prepare(active, run, heartbeat)
        elif job.purpose == MEASURE:
            run_rank(job, active, run, heartbeat, record)
        else:
            pursue(job, Rank(run, active, heartbeat))
    except BaseException as caught:
        error, phase = caught, heartbeat.phase
        run.logger.exception("ended in %s", phase)
    closing = close(active, run, heartbeat)
    try:
        settings.leave_process_group()
    except Exception:
        # The other ranks may be gone; what was measured is measured.
        run.logger.exception("the process group could not be left")
    if error is None and closing is not None:
        error, phase = closing, "close_run"
    heartbeat.phase = WRITES_RESULT
    return rank_result(run, record, error, phase)


def make_run(job: Job, rank: int, local_rank: int) -> Run:
    """Return the `Run` object that all hooks of this rank share."""
    kind = device_type(job.experiment.scenario.resources.device)
    return Run(
        experiment=job.experiment,
        device=Device(kind.torch_type, 0 if kind.on_host else local_rank),
        folder=Path(job.folder),
        cache_folder=Path(job.cache_folder),
        rank=rank,
        local_rank=local_rank,
        world_size=job.world_size,
        round=job.round,
        trust_remote_code=job.trust_remote_code,
        logger=logging.getLogger("accel_bench"),
    )


def prepare(active: ActivePlugins, run: Run, heartbeat: Heartbeat) -> None:
    """Call the hooks that fill caches; take a few steps too if a plugin asks for a rehearsal."""
    heartbeat.phase = "prepare_experiment"
    list(active.call_all("prepare_experiment", run=run))
    if run.rehearsal:
        engine = build(active, run, heartbeat)
        stopwatch = WindowStopwatch(
            clock_of(run),
            heartbeat,
            warmup=REHEARSAL_STEPS,
            steps=1,
            may_resume=not run.scenario.trains,
        )
        stopwatch.start()
        engine.run(stopwatch)


@dataclass(frozen=True)
class Rank:
    """Process of one rank, as passed to the function of a purpose other than to measure."""

    run: Run
    """Object that hooks share; its model, data and optimizer exist once they are built."""

    active: ActivePlugins
    """Plugins of the stack and of the scenario, whose hooks are called."""

    heartbeat: Heartbeat
    """Page through which the parent sees this process's phase and steps."""

    def ask(self, hook: str) -> Any:
        """Call a hook that at most one plugin implements; return its value, or None without one."""
        return self.active.call_one(hook, run=self.run)

    def build(self) -> Engine:
        """Call all hooks up to `build_engine`, as for a measured run, and return the engine."""
        return build(self.active, self.run, self.heartbeat)

    def take_steps(self, engine: Engine, stopwatch: Stopwatch) -> None:
        """Let the engine take steps until the stopwatch stops it."""
        self.heartbeat.phase = "warm-up"
        with self.run.calling(self.active.answers("build_engine")):
            engine.run(stopwatch)


def pursue(job: Job, rank: Rank) -> None:
    """Call the function for the job's purpose, and write its value as JSON to the rank's file."""
    rank.heartbeat.phase = "purpose"
    purpose = find_entry(PURPOSES, "purpose", job.purpose)
    value = purpose.load()(rank)
    try:
        write_atomically(job.answer_path(rank.run.rank), to_json(value), mode=PRIVATE)
    except PydanticSerializationError as error:
        raise purpose.broken(f"what it returned is no JSON: {error}") from error


def run_rank(
    job: Job, active: ActivePlugins, run: Run, heartbeat: Heartbeat, record: RankRecord
) -> None:
    """Build the model, warm up, measure, take extra steps after the window, collect evidence."""
    engine = build(active, run, heartbeat)
    learning = learning_of(run, record, heartbeat)
    window = AroundWindow(job, active, run, heartbeat, record, learning)
    stopwatch = make_stopwatch(job, run, heartbeat, window)
    try:
        with run.calling(active.answers("build_engine")), window.keeps_window():
            take_steps(engine, stopwatch, window)
        window.check_steps_after()
    finally:
        record.phases = stopwatch.phases
        record.steps_after = tuple(window.pace.samples) if window.pace else ()
    if window.communication is not None:
        record.communication = window.communication.result()
    if run.scenario.generates:
        record.answers = answers_of(run, active, heartbeat)
    heartbeat.phase = "report_evidence"
    collect_evidence(active, run, record)


def build(active: ActivePlugins, run: Run, heartbeat: Heartbeat) -> Engine:
    """Call the hooks from `prepare_process` to `build_engine` in order; return the engine."""
    run.task = task_of(active)
    heartbeat.phase = "prepare_process"
    with settings.rare_collections():
        list(active.call_all("prepare_process", run=run))
    settings.apply_settings(run)
    run.trace.mark("imports")
    heartbeat.phase = "load_data"
    run.dataset = active.require("load_data", run=run)
    run.trace.mark("load_data")
    build_model(active, run, heartbeat)
    if not run.scenario.generates:
        heartbeat.phase = "build_loss"
        run.loss = require(active, "build_loss", run)
        heartbeat.phase = "build_optimizer"
        run.optimizer = require(active, "build_optimizer", run)
    heartbeat.phase = "build_batches"
    run.batches = require(active, "build_batches", run)
    if run.scenario.generates:
        run.batches = own_prompts(run.batches, run)
    run.batches = read_ahead(run, active.answers("build_batches"))
    if run.scenario.evaluates:
        heartbeat.phase = "build_evaluation_batches"
        run.evaluation_batches = require(active, "build_evaluation_batches", run)
    run.trace.mark("build")
    heartbeat.phase = "build_engine"
    engine: Engine = require(active, "build_engine", run)
    return engine


def build_model(active: ActivePlugins, run: Run, heartbeat: Heartbeat, given: Any = None) -> None:
    """Call hooks from `load_model` (unless a model is `given`) to `parallelize_model`."""
    heartbeat.phase = "load_model"
    run.model = require(active, "load_model", run) if given is None else given
    if run.task is not None:
        run.task.adjust_model(run.model)
    if hasattr(run.model, "config"):  # Of a hub id, the plan did not know it.
        refuse_architecture(active, type(run.model).__name__)
    run.trace.mark("load_model")
    heartbeat.phase = "add_adapter"
    if active.answers("add_adapter"):
        run.model = require(active, "add_adapter", run)
    if run.scenario.train.gradient_checkpointing:
        enable_gradient_checkpointing(run.model)
    heartbeat.phase = "accelerate_model"
    for plugin, changed in active.call_all("accelerate_model", run=run):
        if changed is not None and not is_model(changed, run):
            raise wrong_return_type(plugin, "accelerate_model", "a model or None", changed)
        run.model = run.model if changed is None else changed
    run.trace.mark("accelerate_model")
    heartbeat.phase = "compile_model"
    active.call_one("compile_model", run=run)
    heartbeat.phase = "parallelize_model"
    run.unwrapped_model = run.model
    # A rehearsal is one process: there is no other to share the work with.
    if active.answers("parallelize_model") and run.world_size == run.scenario.world_size:
        run.model = require(active, "parallelize_model", run)


def make_stopwatch(
    job: Job, run: Run, heartbeat: Heartbeat, window: AroundWindow
) -> WindowStopwatch:
    """Return the stopwatch of this run's steps, configured by the scenario's `measure`."""
    options = run.scenario.measure
    return WindowStopwatch(
        clock_of(run),
        heartbeat,
        warmup=job.warmup if options.warmup == "auto" else options.warmup,
        steps=options.steps,
        before_window=window.before,
        after_window=window.after,
        instabilities=window.monitor.instabilities,
        phase_steps=options.phase_steps,
        learning=window.learning,
        stages=window.stages,
        agree=lambda ready: settings.agree(run, ready),
        synchronize_each=options.sync == "each",
        may_resume=not run.scenario.trains,
    )


def take_steps(engine: Engine, stopwatch: WindowStopwatch, window: AroundWindow) -> None:
    """Let the engine run. Raises InvalidRunError if the engine ends before the window is full."""
    if window.verification is not None:
        stopwatch.lap = window.verification.between_laps(stopwatch.lap)
    stopwatch.lap = window.synchronizations.between_laps(stopwatch.lap)
    window.synchronizations.start()
    stopwatch.start()
    try:
        engine.run(stopwatch)
    finally:
        window.remove_probes()
    if stopwatch.running:
        raise InvalidRunError(["the engine returned before the window was full"])


@dataclass
class AroundWindow:
    """Checks and measurements that the core starts before a window and ends after the last one."""

    job: Job
    active: ActivePlugins
    run: Run
    heartbeat: Heartbeat
    record: RankRecord
    learning: LearningSteps | None = None

    def __post_init__(self) -> None:
        self.verification = verification_of(self.job, self.run, self.record)
        self.synchronizations = SynchronizationCounter(self.run.device.type)
        self.monitor = WindowMonitor(self.run.device_type)
        self.communication = communication_of(self.run)
        self.observed = observed_steps(self.active, self.run, self.record)
        self.pace = pace_of(self.run) if self.verification else None
        known: tuple[StepStage | None, ...] = (
            self.verification.later if self.verification else None,
            self.pace,
            self.communication,
            self.observed,
        )
        self.stages = [stage for stage in known if stage is not None]

    def before(self) -> None:
        """Verify the run before the first window, start the metrics, and wait for other ranks."""
        self._read_steps()
        if self.run.trace.find("warm-up") is None:
            self.run.trace.mark("warm-up")
            self.synchronizations.stop()
            self._verify()
        else:
            self.run.trace.mark("unstable window")
            self._sketch_update()
        list(self.active.call_all("start_metrics", run=self.run))
        self.monitor.start()
        self._read_steps()  # Of plugins nothing is called from here to the window's end.
        self.run.trace.reset_peak_memory()
        self.run.barrier()

    def after(self, window: Window) -> None:
        """Record the measured window and its metrics. Raises InvalidRunError if a check fails."""
        self.record.window = window
        if self.pace is not None:
            self.pace.window = window
        self.record.scheduling = read_scheduling()
        # Before any plugin is called, which could restore what it had changed.
        invalid = self.verification.after_window(window) if self.verification else []
        if len(window.instabilities) > MOST_DISCARDED:
            last = window.instabilities[-1]
            self.record.degraded.append(f"every window was disturbed, the kept one too: {last}")
        self.run.trace.mark("window", forget=False)
        self.heartbeat.phase = "finish_metrics"
        collect_metrics(self.active, self.run, self.record, window)
        self._sketch_update()
        check_window(window, self.run.scenario.generates)
        if invalid:
            raise InvalidRunError(invalid)

    @contextlib.contextmanager
    def keeps_window(self) -> Iterator[None]:
        """Degrade the run, instead of failing it, if a step that plugins observe fails.

        The measured window is complete by then. With several ranks the error is raised again, since
        the other ranks wait for this rank.
        """
        try:
            yield
        except Exception as error:
            if self.observed is None or not self.observed.fail(error):
                raise
            if self.run.world_size > 1 or isinstance(error, InvalidRunError):
                raise
            self.run.logger.exception("a step that was observed")
            self.record.degraded += failure.reasons_of(error, self.observed.phase)

    def check_steps_after(self) -> None:
        """Raise InvalidRunError if the steps after the window contradict those in the window.

        It is called once no other rank waits for this rank in a step.
        """
        if self.verification is not None:
            self.verification.after_all_steps(self.pace.nodes if self.pace else ())
        if self.pace is not None and (reasons := self.pace.reasons()):
            raise InvalidRunError(reasons)

    def remove_probes(self) -> None:
        """Remove all hooks of the core from the model and the optimizers, also after an error."""
        self.synchronizations.stop()
        if self.communication is not None:
            self.communication.stop()
        if self.verification is not None:
            self.verification.remove()

    def _read_steps(self) -> None:
        if self.verification is not None:
            self.verification.read_steps(self.heartbeat.page[HEARTBEAT_STEP])

    def _sketch_update(self) -> None:
        if self.verification is not None:
            self.verification.sketch_update(self.heartbeat.page[HEARTBEAT_STEP])

    def _verify(self) -> None:
        """Record the effective configuration of a run that uses torch."""
        if self.verification is None:
            self.record.device = Device(self.run.device.type, self.run.local_rank)
            if self.run.scenario.generates and "torch" in sys.modules:
                from accel_bench.worker.verify.effective import read_process

                self.record.effective = read_process(self.run, self.record.environment)
            return
        plugin = self.active.answers("parallelize_model")
        strategy = None
        if plugin is not None and self.run.world_size > 1:
            strategy = plugin.instance.expected_strategy(self.run.scenario)
        self.verification.before_window(strategy, self.synchronizations.per_step())


def verification_of(
    job: Job, run: Run, record: RankRecord
) -> Verification | GenerationCheck | None:
    """Return the object that verifies a run; None for a run without torch."""
    if "torch" not in sys.modules or not hasattr(run.unwrapped_model, "named_parameters"):
        return None
    if run.scenario.generates:
        from accel_bench.worker.verify.generation import GenerationCheck

        return GenerationCheck(run, record)
    from accel_bench.worker.verify.verification import Verification

    return Verification(run, record, job)


def learning_of(run: Run, record: RankRecord, heartbeat: Heartbeat) -> LearningSteps | None:
    """Evaluate the model, and return the steps of the learning curve; None if not configured."""
    clock = clock_of(run)
    evaluator = make_evaluator(run, clock.synchronize)
    if evaluator is None and not run.scenario.evaluate.steps:
        return None
    heartbeat.phase = "evaluate"
    learning = LearningSteps(run, record, heartbeat, clock, evaluator)
    learning.before_training()
    return learning


def pace_of(run: Run) -> PaceSteps | None:
    """Return the extra steps that check measured steps' durations; None without training."""
    if not run.scenario.trains:
        return None
    from accel_bench.worker.verify.optimizer_steps import nodes_made

    return PaceSteps(clock_of(run), lambda enough: settings.agree(run, enough), nodes_made)


def communication_of(run: Run) -> CommunicationProbe | None:
    """Return the extra steps that time collectives; None if switched off, or for a single rank."""
    steps = run.scenario.measure.phase_steps
    if not steps or run.world_size == 1 or not settings.has_process_group():
        return None
    from accel_bench.worker.communication import CommunicationProbe

    return CommunicationProbe(clock_of(run).synchronize, steps)


def observed_steps(active: ActivePlugins, run: Run, record: RankRecord) -> ObservedSteps | None:
    """Return the extra steps for plugins' observers; None if no plugin observes steps."""
    if not active.implements("observe_steps"):
        return None
    return ObservedSteps(active, run, record, clock_of(run).synchronize)


def close(active: ActivePlugins, run: Run, heartbeat: Heartbeat) -> BaseException | None:
    """Call every `close_run` hook, then the functions of `run.on_close`; return the first error.

    An error is logged, and the other plugins are still closed.
    """
    heartbeat.phase = "close_run"
    errors: list[BaseException] = []
    for plugin in active.plugins:
        with log_error(run, "close_run", plugin, errors):
            active.call_plugin(plugin, "close_run", run=run)
    while run.undo_callbacks:
        plugin, undo = run.undo_callbacks.pop()
        # What was registered outside of a hook belongs to no plugin.
        attributed = attribute_errors_to(plugin, "on_close") if plugin else contextlib.nullcontext()
        with log_error(run, "on_close", plugin, errors), attributed, run.calling(plugin):
            undo()
    return next(iter(errors), None)


@contextlib.contextmanager
def log_error(
    run: Run, hook: str, plugin: ActivePlugin | None, errors: list[BaseException]
) -> Iterator[None]:
    """Log an error of `hook` of `plugin` that is raised in the block, and append it to `errors`."""
    try:
        yield
    except BaseException as error:
        run.logger.exception("%s of %s", hook, getattr(plugin, "name", "core"))
        errors.append(error)

"""One rank's run from top to bottom: prepare, build, warm up, measure, show evidence, close.

This file is longer than others because it is read once, in the order in which things happen.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accel_bench.errors import AccelBenchError, InvalidRunError
from accel_bench.job import Job
from accel_bench.modeling.checkpointing import enable_gradient_checkpointing
from accel_bench.plugins.constraints import refuse_architecture
from accel_bench.plugins.manager import (
    ActivePlugin,
    ActivePlugins,
    attribute_errors_to,
    wrong_answer,
)
from accel_bench.result import RankResult
from accel_bench.run import Device, Run
from accel_bench.worker import settings
from accel_bench.worker.clocks import Clock, CudaClock, HostClock
from accel_bench.worker.findings import (
    RankRecord,
    check_window,
    collect_evidence,
    collect_metrics,
    rank_result,
)
from accel_bench.worker.heartbeat import Heartbeat
from accel_bench.worker.outliers import WindowMonitor
from accel_bench.worker.stopwatch import MOST_DISCARDED, WindowStopwatch
from accel_bench.worker.verify.synchronizations import SynchronizationCounter

REHEARSAL_STEPS = 2
"""Untimed steps of a prepare process whose plugin asked for a rehearsal."""


def measure(
    job: Job, rank: int, local_rank: int, active: ActivePlugins, heartbeat: Heartbeat
) -> RankResult:
    """Do what the job asks for and return what this rank found, whatever happens."""
    run = make_run(job, rank, local_rank)
    findings = RankRecord()
    error: BaseException | None = None
    phase = ""
    try:
        if job.purpose == "prepare":
            prepare(active, run, heartbeat)
        else:
            run_rank(job, active, run, heartbeat, findings)
    except BaseException as caught:
        error, phase = caught, heartbeat.phase
        run.logger.exception("ended in %s", phase)
    closing = close(active, run, heartbeat)
    if error is None and closing is not None:
        error, phase = closing, "close_run"
    return rank_result(run, findings, error, phase)


def make_run(job: Job, rank: int, local_rank: int) -> Run:
    """The object that this rank's hooks share."""
    kind = job.experiment.scenario.resources.device
    return Run(
        experiment=job.experiment,
        device=Device(kind, local_rank if kind != "cpu" else 0),
        folder=Path(job.folder),
        cache_folder=Path(job.cache_folder),
        rank=rank,
        local_rank=local_rank,
        world_size=job.world_size,
        trust_remote_code=job.trust_remote_code,
        logger=logging.getLogger("accel_bench"),
    )


def prepare(active: ActivePlugins, run: Run, heartbeat: Heartbeat) -> None:
    """Fill caches; when a plugin asks for it, take a few steps so that compile caches fill too."""
    heartbeat.phase = "prepare_experiment"
    for _ in active.call_all("prepare_experiment", run=run):
        pass
    if run.rehearsal:
        build(active, run, heartbeat)
        engine = build_engine(active, run, heartbeat)
        stopwatch = WindowStopwatch(clock_of(run), heartbeat, warmup=REHEARSAL_STEPS, steps=1)
        stopwatch.start()
        engine.run(stopwatch)


def run_rank(
    job: Job, active: ActivePlugins, run: Run, heartbeat: Heartbeat, findings: RankRecord
) -> None:
    """Build, warm up, measure, and collect what plugins have to say."""
    build(active, run, heartbeat)
    engine = build_engine(active, run, heartbeat)
    probe = first_step_probe(run, findings)
    waits = SynchronizationCounter(run.device.type)

    instabilities = WindowMonitor(run.device.type)

    def before_window() -> None:
        if run.trace.find("warm-up") is None:
            run.trace.mark("warm-up")
            waits.stop()
            if probe is not None:
                findings.effective["synchronizations_per_step"] = waits.per_step()
            check_first_step(run, probe, findings, declared_strategy(active, run))
        else:
            run.trace.mark("unstable window")
        for _ in active.call_all("start_metrics", run=run):
            pass
        instabilities.start()
        run.trace.reset_peak_memory()
        run.barrier()

    def after_window() -> None:
        findings.window = stopwatch.window()
        if len(findings.window.instabilities) > MOST_DISCARDED:
            last = findings.window.instabilities[-1]
            findings.degraded.append(f"every window was disturbed, the kept one too: {last}")
        run.trace.mark("window", forget=False)
        heartbeat.phase = "finish_metrics"
        collect_metrics(active, run, findings)
        check_window(findings.window)

    asked = run.scenario.measure
    stopwatch = WindowStopwatch(
        clock_of(run),
        heartbeat,
        warmup=job.warmup if asked.warmup == "auto" else asked.warmup,
        steps=asked.steps,
        before_window=before_window,
        after_window=after_window,
        instabilities=instabilities.look,
        phase_steps=asked.phase_steps,
        agree=lambda ready: settings.agree(run, ready),
        synchronize_each=asked.sync == "each",
    )
    stopwatch.lap = waits.between_laps(stopwatch.lap)
    waits.start()
    stopwatch.start()
    try:
        with run.calling(active.answers("build_engine")):
            engine.run(stopwatch)
    finally:
        waits.stop()
        if probe is not None:
            probe.remove()
    if stopwatch.running:
        raise InvalidRunError(["the engine returned before the window was full"])
    findings.phases = stopwatch.phases
    heartbeat.phase = "report_evidence"
    collect_evidence(active, run, findings)


def build(active: ActivePlugins, run: Run, heartbeat: Heartbeat) -> None:
    """Call the hooks from `prepare_process` to `build_batches`, in the order of the contract."""
    heartbeat.phase = "prepare_process"
    for _ in active.call_all("prepare_process", run=run):
        pass
    settings.apply_settings(run)
    run.trace.mark("imports")
    heartbeat.phase = "load_data"
    run.dataset = answer(active, "load_data", run)
    run.trace.mark("load_data")
    heartbeat.phase = "load_model"
    run.model = answer(active, "load_model", run)
    if hasattr(run.model, "config"):  # Of a hub id, the plan did not know it.
        refuse_architecture(active, type(run.model).__name__)
    run.trace.mark("load_model")
    heartbeat.phase = "add_adapter"
    if active.answers("add_adapter"):
        run.model = answer(active, "add_adapter", run)
    if run.scenario.train.gradient_checkpointing:
        enable_gradient_checkpointing(run.model)
    heartbeat.phase = "accelerate_model"
    for _, changed in active.call_all("accelerate_model", run=run):
        run.model = run.model if changed is None else changed
    run.trace.mark("accelerate_model")
    heartbeat.phase = "compile_model"
    active.call_one("compile_model", run=run)
    heartbeat.phase = "parallelize_model"
    run.unwrapped_model = run.model
    # A rehearsal is one process: there is nobody to share the work with.
    if active.answers("parallelize_model") and run.world_size == run.scenario.world_size:
        run.model = answer(active, "parallelize_model", run)
    heartbeat.phase = "build_optimizer"
    run.optimizer = answer(active, "build_optimizer", run)
    heartbeat.phase = "build_batches"
    run.batches = answer(active, "build_batches", run)
    run.trace.mark("build")


def build_engine(active: ActivePlugins, run: Run, heartbeat: Heartbeat) -> Any:
    """The engine, which must have a `run`."""
    heartbeat.phase = "build_engine"
    engine = answer(active, "build_engine", run)
    if not callable(getattr(engine, "run", None)):
        raise blame(active.answers("build_engine"), "build_engine", "an Engine", engine)
    return engine


def answer(active: ActivePlugins, hook: str, run: Run) -> Any:
    """What the plugin answers that is responsible for the hook; nothing is not an answer."""
    value = active.call_one(hook, run=run)
    if value is None:
        raise blame(active.answers(hook), hook, "something", value)
    return value


def blame(member: ActivePlugin | None, hook: str, wanted: str, got: Any) -> AccelBenchError:
    """The error for a one-answer hook that returned the wrong thing."""
    assert member is not None
    return wrong_answer(member, hook, wanted, got)


def clock_of(run: Run) -> Clock:
    """Events where the device has them, else the host's clock."""
    return CudaClock() if run.device.type == "cuda" else HostClock()


def first_step_probe(run: Run, findings: RankRecord) -> Any:
    """Watch the first optimizer step where torch trains; the null engine has nothing to watch.

    What it finds is kept even when it ends the run.
    """
    if "torch" not in sys.modules or not hasattr(run.unwrapped_model, "named_parameters"):
        return None
    from accel_bench.worker.verify.gradient_flow import FirstStepProbe

    probe = FirstStepProbe(run)
    findings.effective["gradient_flow"] = probe.findings
    return probe


def declared_strategy(active: ActivePlugins, run: Run) -> str | None:
    """How the responsible plugin says that it joins the ranks; None where it says nothing."""
    member = active.answers("parallelize_model")
    return member.instance.strategy if member and run.world_size > 1 else None


def check_first_step(
    run: Run, probe: Any, findings: RankRecord, strategy: str | None = None
) -> None:
    """Before the clock starts: read back what really holds, and refuse what would mean nothing."""
    if probe is None:
        findings.device = {"type": run.device.type, "index": run.local_rank, "name": "", "uuid": ""}
        return
    from accel_bench.worker.flops.trace import read_workload
    from accel_bench.worker.verify.effective import (
        device_facts,
        differences,
        environment_changes,
        read_effective,
    )

    probe.remove()
    run.workload = findings.workload = read_workload(run)
    findings.device = device_facts(run)
    findings.effective |= {
        **read_effective(run),
        **probe.seen(),
        "environment_changes": environment_changes(findings.environment),
    }
    degraded, invalid = differences(run, findings.effective, strategy)
    findings.degraded += degraded
    if invalid:
        raise InvalidRunError(invalid)
    probe.check()


def close(active: ActivePlugins, run: Run, heartbeat: Heartbeat) -> BaseException | None:
    """Call every `close_run`, then what `run.on_close` registered; return the first error.

    An error is logged, and the other plugins are closed all the same.
    """
    heartbeat.phase = "close_run"
    errors: list[BaseException] = []
    for member in active.plugins:
        with _log_error(run, "close_run", member, errors):
            active.call_plugin(member, "close_run", run=run)
    while run.undo_callbacks:
        owner, undo = run.undo_callbacks.pop()
        with _log_error(run, "on_close", owner, errors), attribute_errors_to(owner, "on_close"):
            undo()
    try:
        settings.leave_process_group()
    except Exception:
        # The other ranks may be gone; what was measured is measured.
        run.logger.exception("the process group could not be left")
    return next(iter(errors), None)


@contextlib.contextmanager
def _log_error(
    run: Run, hook: str, member: ActivePlugin, errors: list[BaseException]
) -> Iterator[None]:
    """Log whatever is raised within the block, and keep it in `errors`."""
    try:
        yield
    except BaseException as error:
        run.logger.exception("%s of %s", hook, getattr(member, "name", "core"))
        errors.append(error)

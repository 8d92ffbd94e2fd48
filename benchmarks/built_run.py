"""Build a run in this process, so that two loops can train the very same model in turns."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel_bench.engine import Engine
from accel_bench.job import Job
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import PlanRequest, make_plan
from accel_bench.plugins.manager import activate
from accel_bench.run_context import Run
from accel_bench.scenario.find import read_draft
from accel_bench.worker import measurement
from accel_bench.worker.clocks import HostClock, clock_of
from accel_bench.worker.heartbeat import Heartbeat
from accel_bench.worker.stopwatch import WindowStopwatch
from benchmarks import bare_loop
from benchmarks.watched_clock import WatchedClock


@dataclass(frozen=True)
class BuiltRun:
    """Model, optimizer and data of a run, with two ways to train."""

    run: Run
    """Run that the hooks have built."""

    engine: Engine
    """The engine of the scenario."""

    heartbeat: Heartbeat
    """Heartbeat with a real page, as a worker has one."""

    def clock(self) -> HostClock:
        """Return the clock that a worker would use."""
        return clock_of(self.run)

    def take_measured_steps(self, steps: int, clock: HostClock | None = None) -> WindowStopwatch:
        """Train with the engine and the stopwatch: one step of warm-up, then a window."""
        clock = clock or self.clock()
        opens = clock.open if isinstance(clock, WatchedClock) else lambda: None
        stopwatch = WindowStopwatch(
            clock, self.heartbeat, warmup=1, steps=steps, before_window=opens
        )
        stopwatch.start()
        self.engine.run(stopwatch)
        return stopwatch

    def take_bare_steps(self, steps: int) -> tuple[float, int]:
        """Train with the bare loop for `steps` steps; return their seconds and real tokens."""
        run = self.run
        return bare_loop.take_steps(
            run.model, run.optimizer, run.batches, str(run.device), steps, self.clock().synchronize
        )


@contextlib.contextmanager
def build_run(scenario: Path, overrides: Mapping[str, Any]) -> Iterator[BuiltRun]:
    """Build the first experiment of a scenario as a worker does, and close it afterwards.

    Raises what the hooks raise.
    """
    request = PlanRequest(overrides=tuple(overrides.items()))
    plan = make_plan(read_draft(scenario), read_machine(), request)
    experiment = plan.runnable[0].experiment
    active = activate(experiment.scenario, experiment.stack, allow_torch=True)
    with tempfile.TemporaryDirectory() as folder:
        job = Job(run_id="benchmark", experiment=experiment, folder=folder, cache_folder=folder)
        run = measurement.make_run(job, 0, 0)
        heartbeat = Heartbeat(job.heartbeat_path(0))
        try:
            yield BuiltRun(run, measurement.build(active, run, heartbeat), heartbeat)
        finally:
            measurement.close(active, run, heartbeat)

"""Progress of `accel_bench.run`, reported to a function of the caller."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from accel_bench.job import PREPARE
from accel_bench.planning.plan import Plan, Planned
from accel_bench.result import Result
from accel_bench.runner.heartbeats import Progress
from accel_bench.runner.session import Reporter


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """Progress of a scenario's runs, the argument of `on_progress` in `accel_bench.run`."""

    event: Literal["planned", "started", "running", "ended"]
    """Kind of event: a plan before its first run, or a run that starts, that runs (a few times a
    second), or that has ended and is stored."""

    scenario: str
    """Name of the scenario."""

    runs: int
    """Number of runs of the scenario in this call."""

    ended: int
    """Number of runs that have ended, with any status."""

    estimated_seconds: float | None
    """Estimated seconds of all runs, from stored runs of the same experiments; None without any."""

    stack: str = ""
    """Name of the running stack; empty before the first run."""

    tag: str = ""
    """Tag of the running sweep point; empty without a sweep."""

    what: str = ""
    """Work of the processes: `round 2 of 5`, or `prepare` for filling caches before round 1."""

    phase: str = ""
    """Phase of the running worker, such as `warm-up` or `window`."""

    step: int = 0
    """Optimizer steps that the run has completed."""

    live: str = ""
    """Text of the run's observers, such as the utilization of its GPU."""

    result: Result | None = None
    """Result of the run that has ended; None for other events."""


class CallbackReporter(Reporter):
    """Reporter that calls `function` with each progress event, one call at a time. An exception of
    the function ends the session as Ctrl-C does, and is kept in `raised`."""

    def __init__(self, function: Callable[[RunProgress], object]) -> None:
        self.raised: BaseException | None = None
        self._function = function
        self._plan: dict[str, Any] = {}
        self._ended = 0
        self._lock = threading.RLock()

    def on_plan(self, plan: Plan, runs: int, seconds: float | None) -> None:
        """Report a plan that is about to run, its number of runs and their estimated seconds."""
        self._plan = {"scenario": plan.file.name, "runs": runs, "estimated_seconds": seconds}
        self._ended = 0
        self._call("planned")

    def on_start(self, planned: Planned, what: str) -> None:
        """Report the start of a run; `what` is its work, such as `round 2 of 5`."""
        self._call("started", planned, what)

    def on_progress(self, planned: Planned, what: str, progress: Progress) -> None:
        """Report the phase and the step of a running worker; `what` is the run's work."""
        shown = {"phase": progress.phase, "step": progress.step, "live": progress.live}
        self._call("running", planned, what, **shown)

    def on_result(self, planned: Planned, what: str, result: Result) -> None:
        """Report the end of a run, whose work is `what`, with its result."""
        with self._lock:
            self._ended += what != PREPARE
        self._call("ended", planned, what, result=result)

    def _call(
        self,
        event: Literal["planned", "started", "running", "ended"],
        planned: Planned | None = None,
        what: str = "",
        **more: Any,
    ) -> None:
        if planned is not None:
            experiment = planned.experiment
            more |= {"stack": experiment.stack.name, "tag": experiment.tag, "what": what}
        with self._lock:
            if self.raised is not None:  # the session is ending
                return
            try:
                self._function(RunProgress(event=event, ended=self._ended, **self._plan, **more))
            except BaseException as error:
                self.raised = error
                raise KeyboardInterrupt from error

"""Progress of a run, as a function of the caller gets it."""

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
    """What `on_progress` of `accel_bench.run` is called with."""

    event: Literal["planned", "started", "running", "ended"]
    """Before the first run, when a run starts, a few times a second while it runs, and once it is
    stored."""

    scenario: str
    """Name of the scenario."""

    runs: int
    """Runs of the scenario that this call makes."""

    ended: int
    """How many of them have ended, however they ended."""

    estimated_seconds: float | None
    """How long all of them may take, by what earlier runs of them took; None without those."""

    stack: str = ""
    """The stack that runs; empty before the first run."""

    tag: str = ""
    """Name of its sweep point; empty where nothing is swept."""

    what: str = ""
    """`round 2 of 5`, or `prepare` for what fills caches before the first round."""

    phase: str = ""
    """What its worker does, such as `warmup` or `window`, while it runs."""

    step: int = 0
    """Optimizer steps that it has taken."""

    live: str = ""
    """What observers of the run show, such as the utilization of its GPU."""

    result: Result | None = None
    """The run that has ended; None for the other events."""


class CallbackReporter(Reporter):
    """Calls a function with each progress, one call at a time.

    What the function raises ends the session as Ctrl-C does, and is kept in `raised`.
    """

    def __init__(self, function: Callable[[RunProgress], object]) -> None:
        self.raised: BaseException | None = None
        self._function = function
        self._plan: dict[str, Any] = {}
        self._ended = 0
        self._lock = threading.RLock()

    def on_plan(self, plan: Plan, runs: int, seconds: float | None) -> None:
        """Report how much is to be done."""
        self._plan = {"scenario": plan.file.name, "runs": runs, "estimated_seconds": seconds}
        self._ended = 0
        self._call("planned")

    def on_start(self, planned: Planned, what: str) -> None:
        """Report a run that starts."""
        self._call("started", planned, what)

    def on_progress(self, planned: Planned, what: str, progress: Progress) -> None:
        """Report the step of a run."""
        shown = {"phase": progress.phase, "step": progress.step, "live": progress.live}
        self._call("running", planned, what, **shown)

    def on_result(self, planned: Planned, what: str, result: Result) -> None:
        """Report a run that has ended."""
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

"""Session: at each sweep point, caches are filled and stacks run in rounds, one after the other."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import groupby
from typing import Any

from accel_bench.documents.canonical import canonical_json
from accel_bench.errors import ScenarioError
from accel_bench.launcher import Allocation
from accel_bench.machine.caches import cache_folder
from accel_bench.machine.info import Machine
from accel_bench.planning.plan import Plan, Planned
from accel_bench.result import Provenance, Result
from accel_bench.runner.concurrent_points import run_points
from accel_bench.runner.heartbeats import Progress
from accel_bench.runner.observers import Trackers
from accel_bench.runner.supervise import grace_seconds
from accel_bench.runner.sweep_point import SweepPointRun
from accel_bench.scenario.experiment import Experiment
from accel_bench.store.database import Store
from accel_bench.store.sessions import REPEATED, SessionRecord


class Reporter:
    """Base class of callbacks of a running session; it only logs warnings. With concurrent sweep
    points, several threads call the methods."""

    def on_plan(self, plan: Plan, runs: int, seconds: float | None) -> None:
        """Handle a plan that is about to run; `seconds` is the estimated time of all `runs`."""

    def on_start(self, planned: Planned, what: str) -> None:
        """Handle the start of an attempt; `what` names it, as `prepare` or `round 2 of 5`."""

    def on_progress(self, planned: Planned, what: str, progress: Progress) -> None:
        """Handle the slowest rank's progress, a few times a second; `what` names the attempt."""

    def on_result(self, planned: Planned, what: str, result: Result) -> None:
        """Handle the result of an attempt; `what` names it, as `prepare` or `round 2 of 5`."""

    def on_drop(self, planned: Planned, reason: str) -> None:
        """Handle a stack that is dropped from further rounds; `reason` says why."""

    def on_warning(self, text: str) -> None:
        """Handle a failure that loses no run, such as the error of a tracker."""
        logging.getLogger("accel_bench").warning(text)

    def close(self) -> None:
        """Handle the end of the session."""


def new_id() -> str:
    """Return a new session id: UTC time, so that ids sort by age, and random digits."""
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{secrets.token_hex(2)}"


@dataclass
class Session:
    """Session of one plan, with the store that gets its runs and the settings of the execution."""

    store: Store
    machine: Machine
    reporter: Reporter

    retries: int = 0
    """Number of retries of a run whose failure may be transient."""

    resume: bool = False
    """True to count the rounds that are already complete in the store."""

    command: tuple[str, ...] = ()
    """Command-line arguments of the program, for the record."""

    id: str = field(default_factory=new_id)
    """Id of the session: its UTC time and random digits."""

    continues: tuple[str, ...] = ()
    """Earlier sessions whose complete rounds count even without `resume`."""

    look_of: str = ""
    """Session whose inconclusive verdicts get more rounds; empty for a first session."""

    job: str = ""
    """Name of the cluster's job that runs this command, again after pre-emption, for the record."""

    allocation: Allocation | None = None
    """Processes that the launcher keeps for all runs."""

    interleave: bool = False
    """True to run round 1 of all sweep points, then round 2, ...; else all rounds of each point."""

    repeat_round: int | None = None
    """Number of a round, from 0, that is measured again if a run of it is an outlier."""

    repeats: Provenance = field(default_factory=Provenance)
    """Bundle that this session repeats, for the record; empty without one."""

    repeated_sessions: tuple[str, ...] = ()
    """Ids of the sessions in the repeated bundle."""

    writing: threading.Lock = field(default_factory=threading.Lock)
    """Lock around writing to the store, since points may run concurrently."""

    out_of_memory: list[Experiment] = field(default_factory=list)
    """Experiments that have run out of memory, so that larger ones are left out."""

    trackers: Trackers = field(init=False)
    """Trackers that log the runs of the session's plan beside the store."""

    def run_plan(self, plan: Plan) -> None:
        """Run the plan; every attempt is stored as soon as it has ended.

        Ctrl-C terminates the current run, stores it, and is raised again.
        """
        with self.open_plan(plan) as points:
            if self.interleave:
                run_rounds(points)
            else:
                run_points(points, self.allocation)

    @contextmanager
    def open_plan(self, plan: Plan) -> Iterator[list[SweepPointRun]]:
        """Store the session, and yield the plan's sweep points, which are still to be run."""
        # What they refuse is refused here, and not in the middle of a session.
        cache_folder()
        grace_seconds()
        repeated = self._rounds_to_repeat(plan)
        by_point = groupby(plan.runnable, lambda planned: planned.experiment.point)
        points = {
            name: SweepPointRun(self, plan, list(group), repeated.get(name, ""))
            for name, group in by_point
        }
        order: dict[str, Any] = {name: list(points[name].rounds.values()) for name in points}
        document: dict[str, Any] = {
            "scenario": plan.file.model_dump(mode="json"),
            "written": plan.file.model_dump(mode="json", exclude_unset=True),
            "order": order,
            "reference": plan.request.reference_point,
            "race": plan.request.race,
            "sections": list(plan.request.sections),
            "skipped": [_skipped(planned) for planned in plan.planned if planned.skipped],
            **({"job": self.job} if self.job else {}),
            **({"look_of": self.look_of} if self.look_of else {}),
            **({"repeats": self.repeats.sha256} if self.repeats.sha256 else {}),
            **({REPEATED: list(self.repeated_sessions)} if self.repeated_sessions else {}),
        }
        self.store.add_session(
            SessionRecord(
                id=self.id,
                started_at=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
                scenario=plan.file.name,
                command=self.command,
                document=document,
            )
        )
        runs = sum(len(stacks) for rounds in order.values() for stacks in rounds)
        seconds = plan.seconds(self.store)
        part = runs / max(plan.runs, 1)
        self.reporter.on_plan(plan, runs, None if seconds is None else seconds * part)
        self.trackers = Trackers(
            plan.trackers,
            self.store.folder,
            lambda text: self.reporter.on_warning(text),  # noqa: PLW0108 - late
        )
        try:
            yield list(points.values())
        finally:
            self.trackers.finish(lambda: plan.summarize(self.results(plan)))

    def results(self, plan: Plan) -> list[Result]:
        """Return the results of this session and of earlier sessions that count for the plan."""
        ids = [planned.experiment.id for planned in plan.planned]
        own = self.store.results(session=self.id, experiment_ids=ids)
        return [*self.earlier(ids), *own]

    def earlier(self, ids: Sequence[str]) -> list[Result]:
        """Return the results that earlier sessions have of the experiments `ids`: all earlier
        sessions with `resume`, else those in `continues`."""
        if self.resume:
            results = self.store.results(experiment_ids=ids)
            return [result for result in results if result.session != self.id]
        return [
            result
            for session in self.continues
            for result in self.store.results(session=session, experiment_ids=ids)
        ]

    def _rounds_to_repeat(self, plan: Plan) -> dict[str, str]:
        """Return by sweep point the id of the session whose round `repeat_round` is measured again.

        Raises ScenarioError if no run of that round was unusually slow, since measuring any round
        again would let people choose results.
        """
        if self.repeat_round is None:
            return {}
        ids = [planned.experiment.id for planned in plan.planned]
        rows = plan.summarize(self.earlier(ids)).experiments
        slow = [(canonical_json(row.sweep), run) for row in rows for run in row.slow_runs]
        sessions = {point: run.session for point, run in slow if run.round == self.repeat_round}
        if not sessions:
            others = sorted({run.round + 1 for _, run in slow})
            known = f"of these rounds one does: {others}" if others else "no round has one"
            raise ScenarioError(
                f"--repeat-round {self.repeat_round + 1}: only a round with a run that took far "
                "longer than its stack's others may be measured again, while the verdict is open, "
                f"and once; {known}"
            )
        return sessions


def run_rounds(points: Sequence[SweepPointRun]) -> None:
    """Prepare all sweep points, then run round 1 of all of them, then round 2, ..."""
    for point in points:
        point.prepare()
    for number in sorted({number for point in points for number in point.rounds}):
        # There and back, so that what drifts hits all points alike.
        for point in points[:: -1 if number % 2 else 1]:
            point.run_round(number)


def _skipped(planned: Planned) -> dict[str, Any]:
    experiment = planned.experiment
    return {
        **experiment.model_dump(mode="json", include={"sweep", "tag"}),
        "stack": experiment.stack.name,
        "reasons": list(planned.skipped),
    }

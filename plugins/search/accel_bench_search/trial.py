"""Run single experiments one after the other, each of them once in a results folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from accel_bench.machine.info import Machine
from accel_bench.planning.plan import Plan, Planned
from accel_bench.result import Result, Status
from accel_bench.runner.session import Session
from accel_bench.store.database import Store


class Trial(NamedTuple):
    """One experiment, and the run that counts for it."""

    planned: Planned
    result: Result
    stored: bool
    """True if an earlier run was counted, and it was not run again."""


@dataclass(frozen=True)
class TrialRunner:
    """Runs plans of one experiment, unless the results folder has its answer."""

    store: Store
    machine: Machine
    new_session: Callable[..., Session]

    again: bool = False
    """Run what is stored again."""

    def run(self, plan: Plan) -> Trial:
        """Run the only experiment of a plan; each attempt is stored."""
        planned = plan.single
        found = None if self.again else self.stored(planned)
        if found is not None:
            return Trial(planned, found, True)
        session = self.new_session()
        session.run_plan(plan)
        return Trial(planned, self.store.results(session=session.id)[-1], False)

    def stored(self, planned: Planned) -> Result | None:
        """Return the newest run that counts; None without one."""
        runs = reversed(self.store.results(experiment_ids=[planned.experiment.id]))
        return next(filter(self.counts, runs), None)

    def counts(self, run: Result) -> bool:
        """Return whether a run was measured, and completed or ran out of memory.

        One that ran out of another machine's memory, or of what a container had then, is none.
        """
        here = run.machine is not None and run.machine.memory_bytes == self.machine.memory_bytes
        ended = run.status.completed or (run.status is Status.OOM and here)
        return ended and run.provenance.origin == "measured"

"""Run single experiments one after the other, each of them once in a results folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from accel_bench.machine.info import Machine
from accel_bench.planning.plan import Plan
from accel_bench.result import Result, Status
from accel_bench.runner.session import Session
from accel_bench.store.database import Store


@dataclass(frozen=True)
class TrialRunner:
    """Runs plans of one experiment, unless the results folder has its answer."""

    store: Store
    machine: Machine
    new_session: Callable[..., Session]

    again: bool = False
    """Run what is stored again."""

    def run(self, plan: Plan) -> tuple[Result, bool]:
        """Return the run that counts of the only experiment of a plan, and whether it was stored
        already; if not, it is run, and each attempt is stored."""
        if not self.again:
            known = self.store.results(experiment_ids=[plan.single.experiment.id])
            if found := next(filter(self.counts, reversed(known)), None):
                return found, True
        session = self.new_session()
        session.run_plan(plan)
        return self.store.results(session=session.id)[-1], False

    def counts(self, run: Result) -> bool:
        """Return whether a run was measured, and completed or ran out of memory.

        One that ran out of another machine's memory, or of what a container had then, is none.
        """
        here = run.machine is not None and run.machine.memory_bytes == self.machine.memory_bytes
        ended = run.status.completed or (run.status is Status.OOM and here)
        return ended and run.provenance.origin == "measured"

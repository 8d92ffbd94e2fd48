"""Planning and running of single experiments, unless the results folder has their result."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from accel_bench.cli.request import Invocation
from accel_bench.documents.base import JsonValue
from accel_bench.errors import ScenarioError, did_you_mean
from accel_bench.machine.info import Machine
from accel_bench.planning.plan import Plan, PlanRequest
from accel_bench.planning.request import add_stack
from accel_bench.result import Result, Status
from accel_bench.runner.session import Session
from accel_bench.scenario.draft import Draft
from accel_bench.store.database import Store

TUNED = "tuned"
"""Name of the stack with a trial's values."""


@dataclass(frozen=True)
class StackPlans:
    """Planner of experiments of a stack, and of copies of the stack with a trial's values."""

    draft: Draft
    """Scenario with the changes of the command line."""

    stack: str
    request: PlanRequest
    plan: Callable[[Draft, PlanRequest], Plan]

    @classmethod
    def laid(
        cls, draft: Draft, request: PlanRequest, stack: str | None, invoked: Invocation
    ) -> StackPlans:
        """Return a planner for one stack of the scenario, by default the baseline.

        The command line's changes, in `request`, are applied to a copy of the scenario. `invoked`
        plans it even if the estimated memory exceeds the device's.
        """
        draft = copy.deepcopy(draft)
        for name in request.plugins:
            add_stack(draft, name)
        draft.override(request.overrides)
        request = replace(request, plugins=(), overrides=(), force=True, no_baseline=False)
        return cls(draft, stack or invoked.plan(draft, request).baseline, request, invoked.plan)

    def of_stack(self, changes: Mapping[str, Any]) -> Plan:
        """Return the plan of the unchanged stack; `changes` are settings of the scenario by key."""
        return self._one(self.draft, self.stack, changes)

    def trial(self, parameters: Mapping[str, JsonValue], changes: Mapping[str, Any]) -> Plan:
        """Return the plan of the stack with a trial's values, `parameters` by dotted key.

        `changes` are settings of the scenario by dotted key.
        """
        return self._one(self._with_tuned(parameters), TUNED, changes)

    def both(
        self, parameters: Mapping[str, JsonValue], changes: Mapping[str, Any], seeds: int = 0
    ) -> Plan:
        """Return a plan of the stack and of its copy with a trial's values, in interleaved rounds.

        `parameters` are the trial's values, and `changes` settings of the scenario, by dotted key.
        If `seeds` is not 0, the plan has both stacks once for each of that many seeds.
        """
        overrides = (("baseline", self.stack), *changes.items())
        request = replace(
            self.request, only=(TUNED,), no_baseline=False, seeds=seeds, overrides=overrides
        )
        return self.plan(self._with_tuned(parameters), request)

    def _one(self, draft: Draft, stack: str, changes: Mapping[str, Any]) -> Plan:
        overrides = tuple({"measure.rounds": 1, **changes}.items())
        request = replace(self.request, only=(stack,), no_baseline=True, overrides=overrides)
        return self.plan(draft, request)

    def _with_tuned(self, parameters: Mapping[str, JsonValue]) -> Draft:
        draft = copy.deepcopy(self.draft)
        stacks = draft.data.setdefault("stacks", {"baseline": {"use": []}})
        if self.stack not in stacks:
            hint = did_you_mean(self.stack, stacks)
            raise ScenarioError(f"the file has no stack {self.stack!r} to tune{hint}")
        if TUNED in stacks:
            raise ScenarioError(f"tune makes a stack {TUNED!r}, and the file has one; rename it")
        stacks[TUNED] = copy.deepcopy(stacks[self.stack])
        own = f"stacks.{self.stack}."
        for key, value in parameters.items():
            if key.startswith(own):
                draft.set(f"stacks.{TUNED}.{key.removeprefix(own)}", value, f"--vary {key}")
            else:
                stacks[TUNED].setdefault("set", {})[key] = value
                draft.places["stacks", TUNED, "set", key] = f"--vary {key}"
        return draft


@dataclass(frozen=True)
class TrialRunner:
    """Runner of single-experiment plans, which reuses stored results."""

    store: Store
    machine: Machine
    new_session: Callable[..., Session]

    again: bool = False
    """True to run stored experiments again."""

    def run(self, plan: Plan) -> tuple[Result, bool]:
        """Return the result of a plan's only experiment, and whether it was stored already.

        If no stored run can be reused, the experiment is run, and each attempt is stored.
        """
        if not self.again:
            known = self.store.results(experiment_ids=[plan.single.experiment.id])
            if result := next(filter(self.counts, reversed(known)), None):
                return result, True
        session = self.new_session()
        session.run_plan(plan)
        return self.store.results(session=session.id)[-1], False

    def counts(self, run: Result) -> bool:
        """Return whether a stored run is reused: measured, and completed or out of memory.

        Running out of memory does not count if the machine had another amount of memory.
        """
        here = run.machine is not None and run.machine.memory_bytes == self.machine.memory_bytes
        ended = run.status.completed or (run.status is Status.OOM and here)
        return ended and run.provenance.origin == "measured"

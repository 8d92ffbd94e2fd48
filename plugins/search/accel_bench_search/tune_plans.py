"""Plans of a study: the stack as it is, with the values of a trial, and both side by side."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from accel_bench.documents.base import JsonValue
from accel_bench.errors import ScenarioError, did_you_mean
from accel_bench.planning.plan import Plan, PlanRequest
from accel_bench.scenario.draft import Draft

TUNED = "tuned"
"""Name of the stack that has the values of a trial."""


@dataclass(frozen=True)
class TunePlans:
    """Makes the plans; the values are settings of a stack of their own."""

    draft: Draft
    """The scenario with the changes of the command line."""

    stack: str
    request: PlanRequest
    plan: Callable[[Draft, PlanRequest], Plan]

    def baseline(self, changes: Mapping[str, Any]) -> Plan:
        """Return the plan of the stack as it is, with other values of dotted keys."""
        return self._one(self.draft, self.stack, changes)

    def trial(self, parameters: Mapping[str, JsonValue], changes: Mapping[str, Any]) -> Plan:
        """Return the plan of the stack with the values of a trial."""
        return self._one(self._with_tuned(parameters), TUNED, changes)

    def both(
        self, parameters: Mapping[str, JsonValue], changes: Mapping[str, Any], seeds: int = 0
    ) -> Plan:
        """Return the plan of both, interleaved; with `seeds`, once for each."""
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

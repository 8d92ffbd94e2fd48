"""Commands through the ordinary session: what `ab` prints, and what `bisect` asks at each probe."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

from accel_bench.analysis.schema import Summary
from accel_bench.cli.request import Invocation
from accel_bench.planning.plan import Plan, PlanRequest
from accel_bench.runner.benchmark import Measured, run_plans
from accel_bench.runner.purpose import ask_ranks
from accel_bench.scenario.find import find_drafts
from accel_bench_ab.scenario import By, CommandSettings, NamedCommand, commands_scenario

LOOK = "look-at-command"
"""Purpose of a job that starts a command to see what can be seen of it."""


def plan_commands(
    commands: Sequence[NamedCommand],
    settings: CommandSettings,
    invoked: Invocation,
    request: PlanRequest,
) -> Plan:
    """Return the plan of commands side by side; the first is the baseline."""
    with redirect_stdout(sys.stderr):
        (draft,) = find_drafts([commands_scenario(commands, settings)])
    return invoked.plan(draft, request)


def see(plan: Plan, invoked: Invocation) -> list[dict[str, Any]]:
    """Start each command of a plan until three of its steps are seen, or to its end.

    Return what was seen, by command. Raises WorkerError for a command that fails.
    """
    found = []
    for planned in plan.runnable:
        (answer,) = ask_ranks(LOOK, planned, invoked.machine, one_process=True)
        found.append(json.loads(answer))
    return found


def counted_by(seen: Sequence[Mapping[str, Any]]) -> By:
    """Return what runs of commands can be counted in, by what was seen of all of them."""
    unseen = {what for one in seen for what in one["unseen"]}
    if "steps" in unseen:
        return "wall"
    return "steps" if "tokens" in unseen else "tokens"


def compare_commands(
    commands: Sequence[NamedCommand],
    settings: CommandSettings,
    invoked: Invocation,
    request: PlanRequest,
) -> Summary:
    """Run commands in turns and return their summary, with a verdict for each but the first.

    `request` gives the rounds, as an override of `measure.rounds`; every run is stored, and a
    summary's `experiments` stand in the order of the commands. Raises StoreError, and
    KeyboardInterrupt once what was interrupted is stored.
    """
    ended: list[Measured] = []
    plan = plan_commands(commands, settings, invoked, request)
    run_plans([plan], invoked.benchmark(), ended.append)
    return ended[0].summaries[0]

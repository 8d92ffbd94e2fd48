"""Ordinary sessions of commands, for `ab` and for each probe of `bisect`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout

from accel_bench.analysis.schema import Summary
from accel_bench.cli.request import Invocation
from accel_bench.planning.plan import Plan, PlanRequest
from accel_bench.runner.benchmark import Measured, run_plans
from accel_bench.scenario.find import find_drafts
from accel_bench_ab.scenario import CommandSettings, NamedCommand, commands_scenario


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


def compare_commands(
    commands: Sequence[NamedCommand],
    settings: CommandSettings,
    invoked: Invocation,
    request: PlanRequest,
) -> Summary:
    """Run commands in interleaved rounds; return their summary, the first as baseline.

    `request` sets the rounds, as an override of `measure.rounds`; every run is stored, and a
    summary's `experiments` are in the order of the commands. Raises StoreError, and
    KeyboardInterrupt after storing an interrupted run.
    """
    ended: list[Measured] = []
    plan = plan_commands(commands, settings, invoked, request)
    run_plans([plan], invoked.benchmark(), ended.append)
    return ended[0].summaries[0]

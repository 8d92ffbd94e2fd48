"""`accel-bench gate`: does a stack pass, being no slower than another?"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from accel_bench.analysis.statistics.sequential import look_sizes
from accel_bench.analysis.statistics.verdict import MINIMUM_ROUNDS
from accel_bench.cli.dry_run import print_plan
from accel_bench.cli.options import MeasureOptions, parse_fraction, takes
from accel_bench.cli.output import form_of_output, print_text
from accel_bench.cli.request import new_sessions, one_draft, plan_request, print_failures
from accel_bench.documents.files import write_atomically
from accel_bench.errors import NothingToRunError, ScenarioError, StoreError
from accel_bench.launcher import Allocation
from accel_bench.machine.info import Machine, read_machine
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.runner.allocation import allocated, machine_of
from accel_bench.runner.unfinished import open_results
from accel_bench.scenario.draft import Draft
from accel_bench_ci.gate_view import render_gate
from accel_bench_ci.looks import SessionRounds, points_of_both, settle_gate


@dataclass(frozen=True, kw_only=True)
class GateOptions(MeasureOptions):
    """Options of `gate`."""

    scenario: Annotated[str, typer.Argument(help="A scenario file, or a shipped scenario's name.")]
    stack: Annotated[str, typer.Option(help="The stack that is to pass.")]
    against: Annotated[
        str | None, typer.Option(help="The stack to compare it with; else the baseline.")
    ] = None
    tolerance: Annotated[
        str, typer.Option(metavar="FRACTION", help="Slow-down that is allowed: 1% or 0.01.")
    ] = "1%"
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Rounds at the first look; else the scenario's, at least 5."),
    ] = None
    max_rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Add rounds until it is settled, but no more than this in all."),
    ] = None
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write JUnit XML for a CI system too.")
    ] = None
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write Markdown for a summary too.")
    ] = None


@takes(GateOptions)
def gate(options: GateOptions) -> int:
    """Run two stacks side by side, and fail when one is slower by more than is allowed.

    Exits with 0 when the stack passes, 1 when a run failed or is invalid, 4 when it is slower or
    its loss is different, 5 when that is open, saying how many more rounds would settle it.

    Each look at the rounds, the first and those after --max-rounds or --resume has added some,
    spends its fraction of the error rates, so that looking often raises no more false alarms: at
    most 0.5 %.

    What looks slower is run again in fresh processes, with rounds and looks of its own beyond
    --max-rounds; only what those confirm by themselves, as 0.5 % of false alarms are, is a
    regression.
    """
    floor = parse_fraction(options.tolerance, "--tolerance")
    for path in (options.junit, options.markdown):
        if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
            raise StoreError(f"{path} cannot be written; name a file in a folder that is there")
    machine = read_machine()
    draft = one_draft(options.scenario, "gate")
    request = _request(options, None)
    with allocated([draft], machine, request, sys.argv, options.dry_run) as allocation:
        if allocation is not None and allocation.exit_code is not None:
            return allocation.exit_code
        machine = machine_of(allocation, machine)
        return _plan_and_run(draft, machine, options, floor, allocation)


def _plan_and_run(
    draft: Draft,
    machine: Machine,
    options: GateOptions,
    floor: float,
    allocation: Allocation | None,
) -> int:
    """Plan the looks, run them, and return the exit code."""
    with redirect_stdout(sys.stderr):
        plans = _plans(draft, machine, options)
    first = plans[0]
    if options.dry_run:
        print_plan(plans[:1], options.results, options.output)
    if not points_of_both(first):
        raise NothingToRunError(first.nothing or "no sweep point runs both stacks")
    return 0 if options.dry_run else _run(plans, machine, options, floor, allocation)


def _plans(draft: Draft, machine: Machine, options: GateOptions) -> list[Plan]:
    """Return the plan of each look; they differ in their number of rounds."""
    written = _plan(draft, machine, options, None)
    if written.baseline == options.stack:
        raise ScenarioError(
            f"stack {written.baseline!r} cannot be compared with itself; name another one with "
            "--against"
        )
    first = options.rounds or max(written.file.measure.rounds, MINIMUM_ROUNDS)
    most = options.max_rounds or first
    if most < first:
        raise ScenarioError(
            f"--max-rounds {most} is less than the {first} rounds of the first look; raise it, "
            "or lower --rounds"
        )
    return [_plan(draft, machine, options, size) for size in look_sizes(first, most)]


def _plan(draft: Draft, machine: Machine, options: GateOptions, rounds: int | None) -> Plan:
    request = _request(options, rounds)
    plan = make_plan(draft, machine, request)
    return make_plan(draft, machine, replace(request, only=(options.stack, plan.baseline)))


def _request(options: GateOptions, rounds: int | None) -> PlanRequest:
    short = {"baseline": options.against, "measure.rounds": rounds}
    return plan_request(options, short, only=(options.stack,))


def _run(
    plans: Sequence[Plan],
    machine: Machine,
    options: GateOptions,
    floor: float,
    allocation: Allocation | None,
) -> int:
    """Run rounds and judge, again with more rounds where that may settle it; print the report."""
    with open_results(options.results, write=True) as store:
        with new_sessions(options, store, machine, allocation) as new_session:
            rounds = SessionRounds(plans, options.stack, floor, store, new_session)
            report = settle_gate(rounds, len(plans))
        for path, form in ((options.junit, "junit"), (options.markdown, "markdown")):
            if path is not None:
                write_atomically(path, render_gate(report, form))
        print_text(render_gate(report, form_of_output(options.output)).rstrip("\n"))
        if options.output == "table":
            print_failures(store, rounds.sessions)
    return report.exit_code

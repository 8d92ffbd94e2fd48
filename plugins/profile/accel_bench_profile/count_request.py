"""One `accel-bench scenarios count` from its options to its exit code."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import typer

from accel_bench.cli.output import print_report
from accel_bench.cli.request import one_draft, parse_overrides
from accel_bench.errors import ScenarioError, did_you_mean
from accel_bench.machine.info import Machine, read_machine
from accel_bench.planning.plan import Planned, PlanRequest, make_plan
from accel_bench.runner.purpose import plan_stack
from accel_bench.scenario.draft import Draft
from accel_bench_profile.count import CountOptions
from accel_bench_profile.count_planned import count_planned
from accel_bench_profile.count_view import difference_report, ledger_report
from accel_bench_profile.ledger.difference import difference
from accel_bench_profile.ledger.files import read_ledger, write_ledger
from accel_bench_profile.ledger.schema import Ledger

ROSE = 1
"""Exit code where anything rose."""


def run_count(options: CountOptions) -> int:
    """Count, print the ledger or its difference from another, and return the exit code."""
    draft, machine = one_draft(options.scenario, "count"), read_machine()
    reference = None
    if options.against is not None and Path(options.against).is_file():
        reference = read_ledger(Path(options.against))
    planned = _plan(options, draft, machine, options.stack)
    other = None
    if options.against is not None and reference is None:
        other = _other(options, draft, machine)
    ledger = _count(options, planned, machine)
    if options.save is not None:
        write_ledger(options.save, ledger)
        typer.echo(f"ledger: {options.save}", err=True)
    if other is not None:
        reference = _count(options, other, machine)
    if reference is None:
        print_report(ledger_report(ledger), options.output)
        return 0
    found = difference(reference, ledger)
    print_report(difference_report(found), options.output)
    return ROSE if found.closes else 0


def _count(options: CountOptions, planned: Planned, machine: Machine) -> Ledger:
    if sys.stderr.isatty():
        typer.echo(f"counting a step of {planned.experiment.stack.name}", err=True)
    with redirect_stdout(sys.stderr):
        return count_planned(planned, machine, options.trust_remote_code)


def _other(options: CountOptions, draft: Draft, machine: Machine) -> Planned:
    """Return the plan of the reference stack. Raises ScenarioError for what is neither."""
    assert options.against is not None
    with redirect_stdout(sys.stderr):
        request = replace(_request(options), build_environments=False)
        stacks = make_plan(draft, machine, request).file.stacks
    if options.against not in stacks:
        hint = did_you_mean(options.against, stacks)
        raise ScenarioError(
            f"--against {options.against}: neither a file nor a stack of the scenario{hint}"
        )
    return _plan(options, draft, machine, options.against)


def _plan(options: CountOptions, draft: Draft, machine: Machine, stack: str | None) -> Planned:
    """Return the one experiment of a stack; without a name, of the baseline."""
    with redirect_stdout(sys.stderr):  # what a plugin prints is no part of the document
        return plan_stack(draft, machine, _request(options), stack)


def _request(options: CountOptions) -> PlanRequest:
    short = {"measure.timeout_seconds": options.timeout, "resources.device": options.device}
    return PlanRequest(
        plugins=tuple(options.plugin or ()),
        overrides=parse_overrides(options.set_ or [], short),
        allow_environment=options.allow_env,
        trust_remote_code=options.trust_remote_code,
        force=options.force,
        oversubscribe=options.oversubscribe,
    )

"""One `accel-bench profile` from its options to its exit code."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout

from accel_bench.cli.dry_run import print_plan
from accel_bench.cli.fit_request import one_draft
from accel_bench.cli.options import split_names
from accel_bench.cli.output import print_report
from accel_bench.cli.profile import ProfileOptions
from accel_bench.cli.request import new_sessions, plan_request, print_failures
from accel_bench.errors import NothingToRunError
from accel_bench.job import ProfileRequest
from accel_bench.launcher import Allocation
from accel_bench.machine.info import Machine, read_machine
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.report.views.profile import profile_view
from accel_bench.runner.allocation import allocated, machine_of
from accel_bench.runner.profiling import collect_profiles, refuse_without_torch
from accel_bench.runner.unfinished import open_results
from accel_bench.scenario.draft import Draft


def run_profile(options: ProfileOptions) -> int:
    """Run the stacks once each, print what was recorded, and return the exit code."""
    draft = one_draft(options.scenario, "profile")
    machine = read_machine()
    request = _request(options)
    with allocated([draft], machine, request, sys.argv, options.dry_run) as allocation:
        if allocation is not None and allocation.exit_code is not None:
            return allocation.exit_code
        machine = machine_of(allocation, machine)
        return _profile(options, _plan(draft, machine, request), machine, allocation)


def _request(options: ProfileOptions) -> PlanRequest:
    stacks = tuple(split_names(options.stack))
    return plan_request(
        options,
        {"measure.rounds": 1},
        only=stacks,
        no_baseline=bool(stacks),
        build_environments=not options.dry_run,
        profile=ProfileRequest(
            skip=options.skip,
            wait=options.wait,
            warmup=options.warmup,
            active=options.active,
            repeat=options.repeat,
            top=options.top,
            shapes=options.shapes,
            python_stack=options.python_stack,
        ),
    )


def _plan(draft: Draft, machine: Machine, request: PlanRequest) -> Plan:
    """Return the plan. Raises NothingToRunError or ScenarioError for what cannot be profiled."""
    with redirect_stdout(sys.stderr):  # what a plugin prints is no part of the document
        plan = make_plan(draft, machine, request)
    if plan.nothing:
        raise NothingToRunError(plan.nothing)
    refuse_without_torch(plan, machine)
    return plan


def _profile(
    options: ProfileOptions, plan: Plan, machine: Machine, allocation: Allocation | None
) -> int:
    if options.dry_run:
        print_plan([plan], machine, options.results, options.output)
        return 0
    with open_results(options.results, write=True) as store:
        with new_sessions(options, store, machine, allocation) as new_session:
            session = new_session()
            session.run_plan(plan)
        report = collect_profiles(store.folder, store.results(session=session.id))
        print_report(profile_view(report, options.top), options.output)
        if options.output == "table":
            print_failures(store, [session])
    return report.exit_code

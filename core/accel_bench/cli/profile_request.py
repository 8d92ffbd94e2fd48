"""One `accel-bench profile` from its options to its exit code."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

from accel_bench.analysis.profiles.schema import ProfileReport
from accel_bench.analysis.profiles.waterfall_schema import WaterfallReport
from accel_bench.cli.dry_run import print_plan
from accel_bench.cli.fit_request import one_draft
from accel_bench.cli.options import split_names
from accel_bench.cli.output import print_report
from accel_bench.cli.profile import ProfileOptions
from accel_bench.cli.request import new_sessions, plan_request, print_failures
from accel_bench.errors import NothingToRunError, ScenarioError
from accel_bench.job import ProfileRequest
from accel_bench.launcher import Allocation
from accel_bench.machine.info import Machine, read_machine
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.report.table import Report
from accel_bench.report.views.profile import profile_view
from accel_bench.report.views.profile_waterfall import waterfall_view
from accel_bench.result import Result
from accel_bench.runner.allocation import allocated, machine_of
from accel_bench.runner.profile_waterfall import collect_waterfalls
from accel_bench.runner.profiling import (
    collect_profiles,
    refuse_marks_without_cuda,
    refuse_without_torch,
)
from accel_bench.runner.unfinished import open_results
from accel_bench.scenario.draft import Draft


def run_profile(options: ProfileOptions) -> int:
    """Run the stacks once each, print what was recorded, and return the exit code."""
    if options.against is not None and (options.nvtx or options.memory):
        unused = "--nvtx" if options.nvtx else "--memory"
        raise ScenarioError(f"--against compares what torch's profiler records: leave out {unused}")
    draft = one_draft(options.scenario, "profile")
    machine = read_machine()
    request = _request(options)
    if options.against is not None:
        request = _of_both(request, draft, machine, options.against)
    with allocated([draft], machine, request, sys.argv, options.dry_run) as allocation:
        if allocation is not None and allocation.exit_code is not None:
            return allocation.exit_code
        machine = machine_of(allocation, machine)
        return _profile(options, _plan(draft, machine, request), machine, allocation)


def print_nsys(arguments: Sequence[str]) -> int:
    """Print the command that records this one with Nsight Systems; return the exit code.

    It captures what lies between cudaProfilerStart and cudaProfilerStop, which `--nvtx` calls
    around the active steps of each rank.
    """
    own = [one for one in arguments[1:] if one != "--nsys"]
    command = ["nsys", "profile", "--trace=cuda,nvtx,osrt", "--sample=none"]
    # A report of each capture: every stack has a run of its own.
    command += ["--capture-range=cudaProfilerApi", "--capture-range-end=repeat"]
    command += ["--output=accel-bench-profile", "--force-overwrite=true"]
    print(shlex.join([*command, sys.executable, "-m", "accel_bench", *own, "--nvtx"]))
    return 0


def _request(options: ProfileOptions) -> PlanRequest:
    stacks = tuple(split_names(options.stack))
    return plan_request(
        options,
        {"measure.rounds": _rounds(options)},
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
            memory=options.memory,
            nsight=options.nvtx,
        ),
    )


def _rounds(options: ProfileOptions) -> int | None:
    """Return how many rounds to measure; None for as many as the scenario says."""
    return options.rounds or (None if options.against is not None else 1)


def _of_both(request: PlanRequest, draft: Draft, machine: Machine, against: str) -> PlanRequest:
    """Return the request for the stacks A and B. Raises ScenarioError for more than one A."""
    if not request.only:
        with redirect_stdout(sys.stderr):
            request = replace(request, only=(make_plan(draft, machine, request).baseline,))
    if len(request.only) != 1 or request.only == (against,):
        given = ", ".join(request.only)
        raise ScenarioError(f"--against takes one other stack in --stack, and gets {given!r}")
    return replace(request, only=(*request.only, against), no_baseline=True)


def _plan(draft: Draft, machine: Machine, request: PlanRequest) -> Plan:
    """Return the plan. Raises NothingToRunError or ScenarioError for what cannot be profiled."""
    with redirect_stdout(sys.stderr):  # what a plugin prints is no part of the document
        plan = make_plan(draft, machine, request)
    if plan.nothing:
        raise NothingToRunError(plan.nothing)
    refuse_without_torch(plan, machine)
    refuse_marks_without_cuda(plan)
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
        report, view = _collected(options, plan, store.folder, store.results(session=session.id))
        print_report(view, options.output)
        if options.output == "table":
            print_failures(store, [session])
    return report.exit_code


def _collected(
    options: ProfileOptions, plan: Plan, root: Path, results: Sequence[Result]
) -> tuple[ProfileReport | WaterfallReport, Report]:
    """Return what the session has left: profiles, or the way from one stack to the other."""
    if options.against is None:
        report = collect_profiles(root, results)
        return report, profile_view(report, options.top)
    waterfalls = collect_waterfalls(root, results, plan.request.only[0], options.against)
    return waterfalls, waterfall_view(waterfalls)

"""`accel-bench profile`: time of a step by part, recorded after the measured window."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import typer

from accel_bench.cli.options import Names, PlanOptions, split_names, takes
from accel_bench.cli.output import print_report
from accel_bench.cli.request import Invocation, plan_request, print_failures, single_draft
from accel_bench.documents.load import SUFFIXES
from accel_bench.errors import NothingToRunError, ScenarioError
from accel_bench.planning.plan import Plan, PlanRequest
from accel_bench.result import Result
from accel_bench.runner.interrupted import open_results
from accel_bench.runner.session import Session, run_rounds
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.uses import Use
from accel_bench_profile.collect import collect_profiles, refuse_unprofiled
from accel_bench_profile.collect_waterfalls import Side, collect_waterfalls
from accel_bench_profile.figures.schema import ProfileReport
from accel_bench_profile.figures.waterfall_schema import WaterfallReport
from accel_bench_profile.view import profile_view
from accel_bench_profile.waterfall_view import waterfall_view

RECORDED = ("skip", "wait", "warmup", "active", "repeat", "top", "shapes", "python_stack", "memory")
"""Command options that are passed to the recording plugin."""


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(PlanOptions):
    """Command-line options of `accel-bench profile`."""

    scenario: Annotated[
        str, typer.Argument(help="A scenario file, or a shipped scenario's name.")
    ] = "quickstart"
    stack: Annotated[
        Names, typer.Option(help="Profile only this stack; else all of the scenario.")
    ] = None
    against: Annotated[
        str | None,
        typer.Option(
            metavar="STACK|FILE",
            help="Say where the time goes from --stack (else the baseline) to this stack, or to "
            "that of another scenario's file.",
        ),
    ] = None
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Rounds; else 1, or with --against the scenario's."),
    ] = None
    skip: Annotated[
        int, typer.Option(min=0, help="Steps that are left alone before the first cycle.")
    ] = 0
    wait: Annotated[
        int, typer.Option(min=0, help="Steps that are left alone at the start of a cycle.")
    ] = 0
    warmup: Annotated[
        int, typer.Option(min=0, help="Steps of a cycle in which the profiler runs, unrecorded.")
    ] = 1
    active: Annotated[int, typer.Option(min=1, help="Steps of a cycle that are recorded.")] = 3
    repeat: Annotated[int, typer.Option(min=1, help="Cycles, each with a trace of its own.")] = 1
    top: Annotated[
        int,
        typer.Option(min=1, help="Kernels to show by time and by count; with --against modules."),
    ] = 10
    shapes: Annotated[
        bool, typer.Option("--shapes", help="Keep the shapes of inputs in the trace.")
    ] = False
    python_stack: Annotated[
        bool,
        typer.Option("--python-stack", help="Keep Python's calls in the trace; slows every step."),
    ] = False
    memory: Annotated[
        bool,
        typer.Option(
            "--memory",
            help="Record what memory is used for, and what each module keeps for the backward.",
        ),
    ] = False
    nsys: Annotated[
        bool,
        typer.Option("--nsys", help="Print the command by which Nsight Systems records this."),
    ] = False
    nvtx: Annotated[
        bool,
        typer.Option("--nvtx", help="Mark steps for Nsight, in the place of torch's profiler."),
    ] = False


@takes(ProfileOptions)
def profile(options: ProfileOptions) -> int:
    """Record a few steps with torch's profiler, and say what to look at first.

    The recorded steps come after the measured window, which is stored as by `run`: no recorded
    second is in any metric. Each rank leaves its figures and its traces, which TensorBoard and
    Perfetto open, in the folder of its run.

    With --against, two stacks run in interleaved rounds. The difference of their steps is divided
    by kind of operation and by module, and the modules that gained or lost time are named. With a
    file, the baselines of two scenarios are compared, or the stacks in --stack: `NAME` in both,
    `NAME,OTHER` in SCENARIO and in FILE.
    """
    if options.nsys:
        return print_nsys(sys.argv)
    if options.against is not None and (options.nvtx or options.memory):
        unused = "--nvtx" if options.nvtx else "--memory"
        raise ScenarioError(f"--against compares what torch's profiler records: leave out {unused}")
    draft = single_draft(options.scenario, "profile")
    here = Invocation(options)
    request = _request(options)
    drafts = [draft, *_other_scenario(options.against)]
    requests = [request]
    if options.against is not None:
        requests = _of_both(request, drafts, here, options.against)
    shared = requests[0] if len(requests) == 1 else replace(request, only=(), no_baseline=False)
    with here.allocated(drafts, shared) as invoked:
        plans = [
            _plan(options, draft, invoked, own) for draft, own in zip(drafts, requests, strict=True)
        ]
        return _profile(options, plans, invoked)


def print_nsys(arguments: Sequence[str]) -> int:
    """Print the command that runs this command under Nsight Systems; return the exit code.

    Nsight captures from cudaProfilerStart to cudaProfilerStop, which `--nvtx` calls around the
    active steps of each rank.
    """
    own = [word for word in arguments[1:] if word != "--nsys"]
    command = ["nsys", "profile", "--trace=cuda,nvtx,osrt", "--sample=none"]
    # A report of each capture: every stack has a run of its own.
    command += ["--capture-range=cudaProfilerApi", "--capture-range-end=repeat"]
    command += ["--output=accel-bench-profile", "--force-overwrite=true"]
    print(shlex.join([*command, sys.executable, "-m", "accel_bench", *own, "--nvtx"]))
    return 0


def _request(options: ProfileOptions) -> PlanRequest:
    stacks = tuple(split_names(options.stack))
    recorded = {name: getattr(options, name) for name in RECORDED} | {"nsight": options.nvtx}
    usual = 1 if options.against is None else None  # as many as the scenario says
    return plan_request(
        options,
        {"measure.rounds": options.rounds or usual},
        only=stacks,
        no_baseline=bool(stacks),
        build_environments=not options.dry_run,
        observers=(Use(use="profile", options=recorded),),
    )


def _other_scenario(against: str | None) -> list[Draft]:
    """Return the scenario in the file of `--against`; empty if `--against` names a stack."""
    if against is None or not (Path(against).suffix in SUFFIXES or Path(against).is_file()):
        return []
    return [single_draft(against, "profile --against")]


def _of_both(
    request: PlanRequest, drafts: Sequence[Draft], invoked: Invocation, against: str
) -> list[PlanRequest]:
    """Return a plan request for each of two scenarios, or one for both stacks of a scenario.

    Raises ScenarioError for too many stacks, or a stack compared with itself.
    """
    named = request.only or tuple(invoked.plan(draft, request).baseline for draft in drafts)
    if len(named) > len(drafts) or named == (against,):
        problem = "--stack takes one stack of each file"
        if len(drafts) == 1:
            problem = "--against takes one other stack in --stack"
        raise ScenarioError(f"{problem}, and gets {', '.join(named)!r}")
    pairs = [(named[0], against)] if len(drafts) == 1 else [named[:1], named[-1:]]
    return [replace(request, only=only, no_baseline=True) for only in pairs]


def _plan(options: ProfileOptions, draft: Draft, invoked: Invocation, request: PlanRequest) -> Plan:
    """Return the plan of a scenario.

    Raises NothingToRunError for an empty plan, and ScenarioError if it cannot be profiled.
    """
    plan = invoked.plan(draft, request)
    if plan.nothing:
        raise NothingToRunError(plan.nothing)
    refuse_unprofiled(plan, invoked.machine, options.nvtx)
    return plan


def _profile(options: ProfileOptions, plans: Sequence[Plan], invoked: Invocation) -> int:
    if options.dry_run:
        invoked.show(plans)
        return 0
    with open_results(options.results, write=True) as store:
        with invoked.sessions(store) as new_session:
            sessions = [new_session() for _ in plans]
            _run_side_by_side(sessions, plans)
        results = [store.results(session=session.id) for session in sessions]
        report: ProfileReport | WaterfallReport
        if options.against is None:
            report = collect_profiles(store.folder, results[0])
            view = profile_view(report, options.top)
        else:
            report = collect_waterfalls(store.folder, *_sides(options, plans, results))
            view = waterfall_view(report, options.top)
        print_report(view, options.output)
        if options.output == "table":
            print_failures(store, sessions)
    return report.exit_code


def _sides(
    options: ProfileOptions, plans: Sequence[Plan], results: Sequence[Sequence[Result]]
) -> tuple[Side, Side]:
    """Return the compared stacks; stacks of two scenarios are labelled by scenario or file."""
    if len(plans) == 1:
        first, second = plans[0].request.only
        return Side(results[0], first), Side(results[0], second)
    titles = [plan.file.name for plan in plans]
    if titles[0] == titles[1]:
        titles = [options.scenario, str(options.against)]
    a, b = (
        Side(runs, plan.request.only[0], f"{title} {plan.request.only[0]}")
        for plan, title, runs in zip(plans, titles, results, strict=True)
    )
    return a, b


def _run_side_by_side(sessions: Sequence[Session], plans: Sequence[Plan]) -> None:
    """Run plans in interleaved rounds, each in its own session, so that drift affects all alike."""
    if len(plans) == 1:
        sessions[0].run_plan(plans[0])
        return
    with ExitStack() as opened:
        points = [
            opened.enter_context(session.open_plan(plan))
            for session, plan in zip(sessions, plans, strict=True)
        ]
        run_rounds(
            [point for group in zip_longest(*points) for point in group if point is not None]
        )

"""One `accel-bench gate` from its options to its exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import replace

from accel_bench.analysis.gate import GateReport, judge_gate
from accel_bench.analysis.gate_confirmation import points_to_confirm, with_confirmation
from accel_bench.analysis.statistics.sequential import look_sizes
from accel_bench.analysis.statistics.verdict import MINIMUM_ROUNDS
from accel_bench.cli.dry_run import print_plan
from accel_bench.cli.gate import GateOptions
from accel_bench.cli.output import print_text
from accel_bench.cli.request import find_drafts, new_sessions, plan_request, print_failures
from accel_bench.documents.files import write_atomically
from accel_bench.errors import NothingToRunError, ScenarioError, StoreError
from accel_bench.launcher import Allocation
from accel_bench.machine.info import Machine, read_machine
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.report.views.gate import render_gate
from accel_bench.runner.allocation import allocated, machine_of
from accel_bench.runner.session import Session
from accel_bench.runner.unfinished import open_results
from accel_bench.scenario.draft import Draft
from accel_bench.store.database import Store


def run_gate(options: GateOptions) -> int:
    """Plan, run the looks, print the report; return the exit code."""
    floor = parse_fraction(options.floor, "--floor")
    for path in (options.junit, options.markdown):
        if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
            raise StoreError(f"{path} cannot be written; name a file in a folder that is there")
    machine = read_machine()
    with redirect_stdout(sys.stderr):  # what a plugin prints is no part of the document
        drafts = find_drafts((options.scenario,))
    if len(drafts) != 1:
        raise ScenarioError(f"gate takes one scenario, and {options.scenario!r} holds several")
    request = _request(options, None)
    with allocated(drafts, machine, request, sys.argv, options.dry_run) as allocation:
        if allocation is not None and allocation.exit_code is not None:
            return allocation.exit_code
        machine = machine_of(allocation, machine)
        return _plan_and_run(drafts[0], machine, options, floor, allocation)


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
        print_plan(plans[:1], machine, options.results, options.output)
    if not _points_of_both(first):
        raise NothingToRunError(first.nothing or "no sweep point runs both stacks")
    return 0 if options.dry_run else _run(plans, machine, options, floor, allocation)


def parse_fraction(text: str, where: str) -> float:
    """Parse `1%`, `1 %` or `0.01` as 0.01. Raises ScenarioError outside of 0 to 1."""
    number, percent, rest = text.strip().partition("%")
    try:
        fraction = float(number) / (100 if percent else 1)
    except ValueError:
        fraction = 0.0
    if rest or not 0 < fraction < 1:
        raise ScenarioError(
            f"{where} {text!r} is no fraction above 0 and below 100 %; write 1% or 0.01"
        )
    return fraction


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
    sessions: list[Session] = []
    report: GateReport | None = None
    with open_results(options.results, write=True) as store:
        with new_sessions(options, store, machine, allocation) as new_session:
            for plan in plans:
                session = new_session(continues=tuple(earlier.id for earlier in sessions))
                session.run_plan(_open_points(plan, report))
                sessions.append(session)
                results = session.results(plan)
                report = judge_gate(options.stack, plan.baseline, floor, plan.summaries, results)
                if all(one.outcome != "inconclusive" for one in report.points):
                    break
            assert report is not None
            report, confirming = _confirm(report, plans, new_session, store)
            sessions += confirming
        for path, form in ((options.junit, "junit"), (options.markdown, "markdown")):
            if path is not None:
                write_atomically(path, render_gate(report, form))
        print_text(render_gate(report, options.output).rstrip("\n"))
        if options.output == "table":
            print_failures(store, sessions)
    return report.exit_code


def _points_of_both(plan: Plan) -> set[str]:
    points = [planned.experiment.point for planned in plan.runnable]
    return {point for point in points if points.count(point) == 2}


def _confirm(
    alarm: GateReport, plans: Sequence[Plan], new_session: Callable[..., Session], store: Store
) -> tuple[GateReport, list[Session]]:
    """Run what looks slower again, with looks of its own, until that is confirmed or is not."""
    report, sessions = alarm, list[Session]()
    concerned = open_points = points_to_confirm(alarm)
    for plan in plans:
        if not open_points:
            break
        session = new_session()
        # The rounds that raised the alarm, and any other, count for nothing here.
        session.continues, session.resume = tuple(one.id for one in sessions), False
        session.run_plan(_only(plan, open_points))
        sessions.append(session)
        fresh = [run for one in sessions for run in store.results(session=one.id)]
        report = with_confirmation(alarm, _only(plan, concerned).summaries, fresh)
        undecided = {one.stack_id for one in report.points if one.outcome == "inconclusive"}
        open_points = concerned & undecided
    return report, sessions


def _only(plan: Plan, stack_ids: set[str]) -> Plan:
    """Return the plan with the sweep points of these experiments alone."""
    points = {p.experiment.point for p in plan.planned if p.experiment.id in stack_ids}
    return replace(plan, planned=tuple(p for p in plan.planned if p.experiment.point in points))


def _open_points(plan: Plan, report: GateReport | None) -> Plan:
    """Return the plan without sweep points that are settled or that skip one of the stacks."""
    points = _points_of_both(plan)
    if report is not None:
        settled = {one.stack_id for one in report.points if one.outcome != "inconclusive"}
        points -= {p.experiment.point for p in plan.planned if p.experiment.id in settled}
    return replace(plan, planned=tuple(p for p in plan.planned if p.experiment.point in points))

"""One `accel-bench gate` from its options to its exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from accel_bench.analysis.gate import GateReport, judge_gate
from accel_bench.analysis.statistics.sequential import look_sizes
from accel_bench.analysis.statistics.verdict import MINIMUM_ROUNDS
from accel_bench.cli.dry_run import print_plan
from accel_bench.cli.gate import GateOptions
from accel_bench.cli.progress import make_reporter
from accel_bench.cli.request import find_drafts, plan_request, print_failures, session_maker
from accel_bench.documents.files import write_atomically
from accel_bench.errors import NothingToRunError, ScenarioError, StoreError
from accel_bench.machine.info import Machine, read_machine
from accel_bench.planning.plan import Plan, make_plan
from accel_bench.report.views.gate import render_gate
from accel_bench.runner.session import Session
from accel_bench.scenario.draft import Draft
from accel_bench.store.database import Store, open_store


@dataclass(frozen=True)
class GateRequest:
    """One `accel-bench gate`, as its options ask for it."""

    options: GateOptions

    def execute(self) -> int:
        """Plan, run the looks, print the report; return the exit code."""
        options = self.options
        floor = parse_share(options.floor, "--floor")
        _check_folders(options.junit, options.markdown)
        machine = read_machine()
        with redirect_stdout(sys.stderr):  # what a plugin prints is no part of the document
            plans = self._plans(machine)
        first = plans[0]
        if options.dry_run:
            print_plan(plans[:1], options.results, options.output)
        if not _gated(first):
            raise NothingToRunError(first.nothing or "no sweep point runs both stacks")
        return 0 if options.dry_run else self._run(plans, machine, floor)

    def _plans(self, machine: Machine) -> list[Plan]:
        """Return the plan of each look; they differ in their number of rounds."""
        drafts = find_drafts((self.options.scenario,))
        if len(drafts) != 1:
            raise ScenarioError(
                f"gate takes one scenario, and {self.options.scenario!r} holds several"
            )
        written = self._plan(drafts[0], machine, None)
        if written.baseline == self.options.stack:
            raise ScenarioError(
                f"stack {written.baseline!r} cannot be compared with itself; name another one with "
                "--against"
            )
        first = self.options.rounds or max(written.file.measure.rounds, MINIMUM_ROUNDS)
        most = self.options.max_rounds or first
        if most < first:
            raise ScenarioError(
                f"--max-rounds {most} is less than the {first} rounds of the first look; raise it, "
                "or lower --rounds"
            )
        return [self._plan(drafts[0], machine, size) for size in look_sizes(first, most)]

    def _plan(self, draft: Draft, machine: Machine, rounds: int | None) -> Plan:
        """Return a plan of the two stacks, both of which must be able to run here."""
        stack = self.options.stack
        short = {"baseline": self.options.against, "measure.rounds": rounds}
        request = plan_request(self.options, short, only=(stack,))
        plan = make_plan(draft, machine, request)
        return make_plan(draft, machine, replace(request, only=(stack, plan.baseline)))

    def _run(self, plans: Sequence[Plan], machine: Machine, floor: float) -> int:
        """Look until all is settled, print the report, and return the exit code."""
        with open_store(self.options.results, write=True) as store:
            reporter = make_reporter(self.options.quiet)
            new_session = session_maker(self.options, store, machine, reporter)
            try:
                with redirect_stdout(sys.stderr):
                    sessions, report = self._look(plans, new_session, floor)
            finally:
                reporter.close()
            self._print(report, store, sessions)
        return report.exit_code

    def _look(
        self, plans: Sequence[Plan], new_session: Callable[..., Session], floor: float
    ) -> tuple[list[Session], GateReport]:
        """Run rounds and judge, again with more rounds where that may settle it."""
        sessions: list[Session] = []
        report: GateReport | None = None
        for plan in plans:
            session = new_session(continues=tuple(earlier.id for earlier in sessions))
            session.run_plan(_open_points(plan, report))
            sessions.append(session)
            results = session.results(plan)
            report = judge_gate(self.options.stack, plan.baseline, floor, plan.summaries, results)
            if report.outcome != "inconclusive":
                break
        assert report is not None
        return sessions, report

    def _print(self, report: GateReport, store: Store, sessions: list[Session]) -> None:
        """Print the report, and write the files that the options name."""
        for path, form in ((self.options.junit, "junit"), (self.options.markdown, "markdown")):
            if path is not None:
                write_atomically(path, render_gate(report, form))
        typer.echo(render_gate(report, self.options.output).rstrip("\n"))
        if self.options.output == "table":
            print_failures(store, sessions)


def parse_share(text: str, where: str) -> float:
    """Parse `1%`, `1 %` or `0.01` as 0.01. Raises ScenarioError outside of 0 to 1."""
    number, percent, rest = text.strip().partition("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = 0.0
    if rest or not 0 < share < 1:
        raise ScenarioError(
            f"{where} {text!r} is no share above 0 and below 100 %; write 1% or 0.01"
        )
    return share


def _gated(plan: Plan) -> bool:
    """Return whether any sweep point runs both stacks."""
    points = [planned.experiment.point for planned in plan.runnable]
    return any(points.count(point) == 2 for point in points)


def _open_points(plan: Plan, report: GateReport | None) -> Plan:
    """Return the plan without sweep points that are settled or that skip one of the stacks."""
    points = [planned.experiment.point for planned in plan.runnable]
    both = {point for point in points if points.count(point) == 2}
    if report is not None:
        settled = {one.stack_id for one in report.points if one.outcome != "inconclusive"}
        both -= {p.experiment.point for p in plan.planned if p.experiment.id in settled}
    return replace(plan, planned=tuple(p for p in plan.planned if p.experiment.point in both))


def _check_folders(*files: Path | None) -> None:
    """Refuse files that cannot be written before anything is measured."""
    for path in files:
        if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
            raise StoreError(f"{path} cannot be written; name a file in a folder that is there")

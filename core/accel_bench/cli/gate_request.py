"""One `accel-bench gate` from its options to its exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from accel_bench.analysis.gate import GateReport, judge_gate
from accel_bench.analysis.statistics.comparison import MINIMUM_PAIRS
from accel_bench.analysis.statistics.sequential import look_sizes
from accel_bench.cli.dry_run import print_plan
from accel_bench.cli.progress import QuietReporter, make_reporter
from accel_bench.cli.request import find_drafts, print_failures
from accel_bench.documents.redaction import Redactor
from accel_bench.errors import NothingToRunError, ScenarioError, StoreError
from accel_bench.machine.info import Machine, read_machine
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.report.gate_report import render_gate
from accel_bench.result import Result
from accel_bench.runner.folders import write_atomically
from accel_bench.runner.session import Session, new_id
from accel_bench.scenario.draft import Draft
from accel_bench.store.database import Store, open_store


@dataclass(frozen=True)
class GateRequest:
    """What the user has asked for."""

    scenario: str
    """A file, or the name of a shipped scenario."""

    stack: str
    """The stack that wants to pass."""

    floor: float
    """Relative slow-down that is allowed."""

    plan_request: PlanRequest
    """Changes to what the file says; its baseline is the other stack."""

    rounds: int | None
    """Pairs at the first look; None takes the scenario's, or 5 where that is less."""

    max_pairs: int | None
    """Pairs in all up to which rounds are added; None adds none."""

    results: Path
    """The results folder."""

    resume: bool
    """Count complete rounds of earlier sessions."""

    retries: int
    """Tries after a run that was lost."""

    dry_run: bool
    """Print the plan only."""

    output: str
    """`table`, `json`, `csv` or `markdown`."""

    junit: Path | None
    """File for JUnit XML."""

    markdown: Path | None
    """File for Markdown."""

    quiet: bool
    """Show no progress."""

    def execute(self) -> int:
        """Plan, run the looks, print what came of them; return the exit code."""
        _check_folders(self.junit, self.markdown)
        machine = read_machine()
        with redirect_stdout(sys.stderr):  # what a plugin prints is no part of the document
            plans = self._plans(machine)
        first = plans[0]
        if self.dry_run:
            print_plan(plans[:1], self.results, self.output)
        if not _gated(first):
            raise NothingToRunError(first.nothing or "no sweep point runs both stacks")
        return 0 if self.dry_run else self._run(plans, machine)

    def _plans(self, machine: Machine) -> list[Plan]:
        """The plan of each look: they differ in their number of rounds alone."""
        drafts = find_drafts((self.scenario,))
        if len(drafts) != 1:
            raise ScenarioError(f"gate takes one scenario, and {self.scenario!r} holds several")
        asked = self._plan(drafts[0], machine, None)
        if asked.baseline == self.stack:
            raise ScenarioError(
                f"stack {self.stack!r} cannot be held against itself; name another one with "
                "--against"
            )
        first = self.rounds or max(asked.file.measure.rounds, MINIMUM_PAIRS)
        most = self.max_pairs or first
        if most < first:
            raise ScenarioError(
                f"--max-pairs {most} is less than the {first} pairs of the first look; raise it, "
                "or lower --rounds"
            )
        return [self._plan(drafts[0], machine, size) for size in look_sizes(first, most)]

    def _plan(self, draft: Draft, machine: Machine, rounds: int | None) -> Plan:
        """A plan of the two stacks, both of which must be able to run here."""
        more = (("measure.rounds", rounds),) if rounds else ()
        request = replace(self.plan_request, overrides=(*self.plan_request.overrides, *more))
        plan = make_plan(draft, machine, request)
        both = replace(request, only=(self.stack, plan.baseline))
        return make_plan(draft, machine, both)

    def _run(self, plans: Sequence[Plan], machine: Machine) -> int:
        """Take looks until all is settled, print the report, and return the exit code."""
        with open_store(self.results, write=True) as store:
            reporter = make_reporter(self.quiet)
            try:
                with redirect_stdout(sys.stderr):
                    sessions, report = self._look(plans, machine, store, reporter)
            finally:
                reporter.close()
            self._print(report, store, sessions)
        return report.exit_code

    def _look(
        self, plans: Sequence[Plan], machine: Machine, store: Store, reporter: QuietReporter
    ) -> tuple[list[Session], GateReport]:
        """Run rounds and judge, again with more rounds where that may settle it."""
        session_id = new_id()
        sessions: list[Session] = []
        report: GateReport | None = None
        for number, plan in enumerate(plans):
            session = Session(
                store,
                machine,
                reporter,
                self.retries,
                self.resume,
                tuple(sys.argv),
                f"{session_id}.{number + 1}" if number else session_id,
                tuple(earlier.id for earlier in sessions),
            )
            session.run_plan(_open_points(plan, report))
            sessions.append(session)
            report = self._judge(plan, session.results(plan))
            if report.outcome != "inconclusive":
                break
        assert report is not None
        return sessions, report

    def _judge(self, plan: Plan, results: Sequence[Result]) -> GateReport:
        """What the results say, without secrets."""
        report = judge_gate(self.stack, plan.baseline, self.floor, plan.summaries, results)
        redactor = Redactor.from_environment({**os.environ, **plan.file.environment})
        return redactor.redact_model(report)

    def _print(self, report: GateReport, store: Store, sessions: list[Session]) -> None:
        """Print the report, and write the files that were asked for."""
        for path, form in ((self.junit, "junit"), (self.markdown, "markdown")):
            if path is not None:
                write_atomically(path, render_gate(report, form))
        typer.echo(render_gate(report, self.output).rstrip("\n"))
        if self.output == "table":
            print_failures(store, sessions)


def parse_share(text: str, where: str) -> float:
    """`1%`, `1 %` or `0.01` as 0.01. Raises ScenarioError for anything not between 0 and 1."""
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
    """Whether any sweep point runs both stacks."""
    points = [planned.experiment.point for planned in plan.runnable]
    return any(points.count(point) == 2 for point in points)


def _open_points(plan: Plan, report: GateReport | None) -> Plan:
    """The plan without sweep points that are settled, or at which one of the two is skipped."""
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

"""`accel-bench gate`: fail if a stack is slower than another."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated
from xml.etree import ElementTree

import typer

from accel_bench.analysis.statistics.sequential import look_sizes
from accel_bench.analysis.statistics.verdict import MINIMUM_ROUNDS
from accel_bench.analysis.wording import (
    StackAtPoint,
    confidence,
    label,
    percent,
    point_name,
    ratio,
    ratio_interval,
)
from accel_bench.cli.options import CompareOption, MeasureOptions, parse_fraction, takes
from accel_bench.cli.output import form_of_output, print_text
from accel_bench.cli.request import Invocation, plan_request, print_failures, single_draft
from accel_bench.documents.escaping import plain
from accel_bench.documents.files import write_atomically
from accel_bench.errors import NothingToRunError, ScenarioError, StoreError
from accel_bench.planning.plan import Plan, PlanRequest
from accel_bench.report.formats import render_report
from accel_bench.report.table import Column, Line, Report, Section, Table, columns_of, reader
from accel_bench.report.views.training import verdict_column
from accel_bench.runner.interrupted import open_results
from accel_bench.scenario.draft import Draft
from accel_bench_ci.looks import SessionRounds, points_of_both, settle_gate
from accel_bench_ci.verdict import GatePoint, GateReport


@dataclass(frozen=True, kw_only=True)
class GateOptions(MeasureOptions):
    """Command-line options of `accel-bench gate`."""

    scenario: Annotated[str, typer.Argument(help="A scenario file, or a shipped scenario's name.")]
    stack: Annotated[str, typer.Option(help="The stack that is to pass.")]
    against: Annotated[
        str | None, typer.Option(help="The stack to compare it with; else the baseline.")
    ] = None
    tolerance: Annotated[
        str, typer.Option(metavar="FRACTION", help="Slow-down that is allowed: 1% or 0.01.")
    ] = "1%"
    compare: CompareOption = None
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
    its loss is different, 5 when this is undecided, with the number of rounds that would decide it.

    Each look (analysis of the rounds so far: the first, and after --max-rounds or --resume has
    added some) spends its fraction of the error rates, so that many looks raise no more false
    alarms: at most 0.5 %.

    An apparent slow-down is measured again in fresh processes, with more rounds and looks beyond
    --max-rounds. It is a regression only if these rounds alone confirm it. At most 0.5 % of false
    alarms are confirmed.
    """
    floor = parse_fraction(options.tolerance, "--tolerance")
    for path in (options.junit, options.markdown):
        if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
            raise StoreError(f"{path} cannot be written; name a file in a folder that is there")
    draft = single_draft(options.scenario, "gate")
    with Invocation(options).allocated([draft], _request(options, None)) as invoked:
        plans = _plans(draft, invoked, options)
        if options.dry_run:
            invoked.show(plans[:1])
        if not points_of_both(plans[0]):
            raise NothingToRunError(plans[0].nothing or "no sweep point runs both stacks")
        return 0 if options.dry_run else _run(plans, invoked, options, floor)


def _plans(draft: Draft, invoked: Invocation, options: GateOptions) -> list[Plan]:
    """Return one plan for each look (interim analysis), with an increasing number of rounds.

    Raises ScenarioError if the stack is its own baseline, or if --max-rounds is too small.
    """
    written = _plan(draft, invoked, options, None)
    if written.baseline == options.stack:
        raise ScenarioError(
            f"stack {written.baseline!r} cannot be compared with itself; name another one with "
            "--against"
        )
    first = options.rounds or max(written.rounds, MINIMUM_ROUNDS)
    most = options.max_rounds or first
    if most < first:
        raise ScenarioError(
            f"--max-rounds {most} is less than the {first} rounds of the first look; raise it, "
            "or lower --rounds"
        )
    return [_plan(draft, invoked, options, size) for size in look_sizes(first, most)]


def _plan(draft: Draft, invoked: Invocation, options: GateOptions, rounds: int | None) -> Plan:
    request = _request(options, rounds)
    plan = invoked.plan(draft, request)
    return invoked.plan(draft, replace(request, only=(options.stack, plan.baseline)))


def _request(options: GateOptions, rounds: int | None) -> PlanRequest:
    short = {
        "baseline": options.against,
        "measure.rounds": rounds,
        "measure.compare": options.compare,
    }
    return plan_request(options, short, only=(options.stack,))


def _run(plans: Sequence[Plan], invoked: Invocation, options: GateOptions, floor: float) -> int:
    """Measure rounds, judge them, add rounds while undecided, and print the report. Return the exit
    code.

    `floor` is the allowed relative slow-down.
    """
    with open_results(options.results, write=True) as store:
        with invoked.sessions(store) as new_session:
            rounds = SessionRounds(plans, options.stack, floor, store, new_session)
            report = settle_gate(rounds, len(plans))
        for path, form in ((options.junit, "junit"), (options.markdown, "markdown")):
            if path is not None:
                write_atomically(path, render_gate(report, form))
        print_text(render_gate(report, form_of_output(options.output)).rstrip("\n"))
        if options.output == "table":
            print_failures(store, rounds.sessions)
    return report.exit_code


FAILURES: Mapping[str, str] = {
    "regression": "failure",
    "inconclusive": "failure",
    "failed": "error",
    "skipped": "skipped",
}
"""JUnit element of each outcome of a sweep point except `passed`."""

COLUMNS = (
    Column("sweep point", lambda point: point_name(point) or "all", kind="name"),
    Column("outcome", reader("outcome"), kind="word"),
    Column("times as fast", reader("ratio"), form=ratio_interval, kind="number"),
    Column("at least", reader("slower_by_at_most"), form=lambda slower: ratio(1 / (1 + slower)),
           kind="number"),
    Column("rounds", reader("rounds"), kind="number"),
    Column("missing", reader("more_rounds"), kind="number"),
    verdict_column("loss"),
    verdict_column("update"),
)  # fmt: skip
"""Columns of the printed table of `gate`."""


FLAT = (
    *columns_of(GateReport, "report", names="schema_version scenario stack against floor"),
    *columns_of(GatePoint, "point"),
)
"""CSV columns of `gate`."""


def render_gate(report: GateReport, form: str) -> str:
    """Return a report as text in the output format `form`: `junit` for JUnit XML, or a name that
    `--output` takes. Raises AccelBenchError for an unknown format."""
    return render_junit(report) if form == "junit" else render_report(gate_report(report), form)


def _columns(report: GateReport) -> list[Column]:
    """Return the columns of the printed table. The ratio's title names the compared quantity and
    the confidence level of its intervals, which depends on the number of looks."""
    times = report.points[0].words.times if report.points else ""
    known = {confidence(point.ratio) for point in report.points if point.ratio}
    unit = f"[{known.pop()} interval]" if len(known) == 1 else "[interval]"
    return [
        replace(column, title=times, unit=unit) if column.key == "times as fast" else column
        for column in COLUMNS
    ]


def gate_report(report: GateReport) -> Report:
    """Return a printable report: the outcome, the compared stacks, a row for each sweep point."""
    compared = f"{report.stack} against {report.against}, floor {percent(report.floor)}"
    reasons = [point.reason for point in report.points]
    more = [reason for point in report.points for reason in point.reasons]
    more += [f"load: {note}" for note in report.noise]
    section = Section(
        title=f"{report.scenario}: {report.outcome} (exit {report.exit_code})",
        headline=reasons[0] if len(reasons) == 1 else compared,
        tables=[Table(_columns(report), report.points)],
        notes=[*([compared] if len(reasons) == 1 else reasons), *dict.fromkeys(more)],
    )
    rows = [Line(report=report, point=point) for point in report.points]
    return Report([section], report, Table(FLAT, rows))


def render_junit(report: GateReport) -> str:
    """Return the JUnit XML of a test suite with a test case for each sweep point."""
    tree = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(tree, "testsuite", name=plain(report.scenario))
    outcomes = [FAILURES.get(point.outcome, "passed") for point in report.points]
    suite.set("tests", str(len(outcomes)))
    for kind, plural in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(plural, str(outcomes.count(kind)))
    suite.set("time", f"{sum(point.seconds for point in report.points):.3f}")
    for point in report.points:
        _add_case(suite, report, point)
    ElementTree.indent(tree)
    return ElementTree.tostring(tree, encoding="unicode", xml_declaration=True) + "\n"


def _add_case(suite: ElementTree.Element, report: GateReport, point: GatePoint) -> None:
    """Add the test case of a sweep point with its reason and all figures to a JUnit test suite."""
    stack = StackAtPoint(report.stack, point.sweep, point.tag)
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=f"accel_bench.gate.{plain(report.scenario)}",
        name=plain(f"{label(stack)} against {report.against}"),
        time=f"{point.seconds:.3f}",
    )
    figures = [f"{column.header}: {column.text(point)}" for column in _columns(report)[2:]]
    details = "\n".join([*figures, *map(plain, point.reasons), *map(plain, report.noise)])
    kind = FAILURES.get(point.outcome)
    if kind is None:
        ElementTree.SubElement(case, "system-out").text = f"{plain(point.reason)}\n{details}"
        return
    element = ElementTree.SubElement(case, kind, message=plain(point.reason))
    if kind != "skipped":
        element.set("type", point.outcome)
    element.text = details

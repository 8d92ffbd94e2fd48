"""The gate's report; and as JUnit XML, for a CI system."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from xml.etree import ElementTree

from accel_bench.analysis.wording import (
    StackAtPoint,
    label,
    percent,
    point_name,
    ratio,
    ratio_interval,
)
from accel_bench.documents.shown import plain
from accel_bench.report.formats import render_report
from accel_bench.report.table import (
    Column,
    Report,
    Section,
    Table,
    interval_paths,
    paths,
    reader,
)
from accel_bench.report.views.training import training_paths, verdict_column
from accel_bench_ci.verdict import GatePoint, GateReport

FAILURES: Mapping[str, str] = {
    "regression": "failure",
    "inconclusive": "failure",
    "failed": "error",
    "skipped": "skipped",
}
"""JUnit's element for each outcome that is not `passed`."""

COLUMNS = (
    Column("sweep point", lambda point: point_name(point) or "all", kind="name"),
    Column("outcome", reader("outcome"), kind="word"),
    Column("times as fast", reader("ratio"), unit="[95 % interval]",
           form=ratio_interval, kind="number"),
    Column("at least", reader("slower_by_at_most"), form=lambda slower: ratio(1 / (1 + slower)),
           kind="number"),
    Column("rounds", reader("rounds"), kind="number"),
    Column("missing", reader("more_rounds"), kind="number"),
    verdict_column("loss"),
    verdict_column("update"),
)  # fmt: skip
"""Columns for people; the outcome stands in JUnit's element."""


class FlatPoint(NamedTuple):
    """Sources of one line of the CSV."""

    report: GateReport
    point: GatePoint


FLAT = (
    *paths("report", "schema_version scenario stack against floor"),
    *paths("point", "sweep tag outcome reason stack_id against_id rounds looks slower_by"),
    *paths("point", "slower_by_at_most rounds_needed more_rounds"),
    *training_paths("point"),
    *paths("point", "status against_status seconds"),
    *interval_paths("point", "ratio"),
    *paths("point", "confirmed confirmation_rounds error_rate"),
    *interval_paths("point", "confirmation_ratio"),
    *paths("point", "reasons"),
)
"""Columns of the CSV."""


def render_gate(report: GateReport, form: str) -> str:
    """Return the report as text, or as JUnit XML; raises AccelBenchError for an unknown format."""
    return render_junit(report) if form == "junit" else render_report(gate_report(report), form)


def gate_report(report: GateReport) -> Report:
    """Return the outcome, what was compared, and a row for each sweep point with its reason."""
    compared = f"{report.stack} against {report.against}, floor {percent(report.floor)}"
    reasons = [point.reason for point in report.points]
    more = [reason for point in report.points for reason in point.reasons]
    more += [f"load: {note}" for note in report.noise]
    section = Section(
        title=f"{report.scenario}: {report.outcome} (exit {report.exit_code})",
        answer=reasons[0] if len(reasons) == 1 else compared,
        tables=[Table(COLUMNS, report.points)],
        notes=[*([compared] if len(reasons) == 1 else reasons), *dict.fromkeys(more)],
    )
    rows = [FlatPoint(report, point) for point in report.points]
    return Report([section], report, Table(FLAT, rows))


def render_junit(report: GateReport) -> str:
    """Return a test suite with a test case for each sweep point, as CI systems read it."""
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
    """Add one test case; what did not pass has its reason and all figures."""
    stack = StackAtPoint(report.stack, point.sweep, point.tag)
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=f"accel_bench.gate.{plain(report.scenario)}",
        name=plain(f"{label(stack)} against {report.against}"),
        time=f"{point.seconds:.3f}",
    )
    figures = [f"{column.header}: {column.text(point)}" for column in COLUMNS[2:]]
    details = "\n".join([*figures, *map(plain, point.reasons), *map(plain, report.noise)])
    kind = FAILURES.get(point.outcome)
    if kind is None:
        ElementTree.SubElement(case, "system-out").text = f"{plain(point.reason)}\n{details}"
        return
    element = ElementTree.SubElement(case, kind, message=plain(point.reason))
    if kind != "skipped":
        element.set("type", point.outcome)
    element.text = details

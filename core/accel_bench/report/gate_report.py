"""The gate's report: a table, JSON, CSV, Markdown, or JUnit XML for a CI system."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from io import StringIO
from xml.etree import ElementTree

from accel_bench.analysis.gate import GatePoint, GateReport
from accel_bench.analysis.wording import interval_text, label, percent, ratio
from accel_bench.errors import AccelBenchError, did_you_mean
from accel_bench.report.cells import EMPTY, plain
from accel_bench.report.csv_report import cell, interval_columns
from accel_bench.report.markdown import escape
from accel_bench.scenario.experiment import canonical_json

FAILURES: Mapping[str, str] = {
    "regression": "failure",
    "inconclusive": "failure",
    "failed": "error",
    "skipped": "skipped",
}
"""JUnit's element for each outcome that is not `passed`."""

HEADERS = ("outcome", "ratio", "slower by", "at most", "pairs", "missing", "loss")
"""Headers after that of the sweep point."""


def render_gate(report: GateReport, format: str) -> str:
    """Return the report as text; raises AccelBenchError for a format that there is not."""
    if format not in FORMATS:
        raise AccelBenchError(f"no report format {format!r}{did_you_mean(format, FORMATS)}")
    return FORMATS[format](report)


def render_text(report: GateReport) -> str:
    """One line for each sweep point, and what was said of it."""
    lines = [f"{plain(report.scenario)}: {report.outcome} (exit {report.exit_code})"]
    for point in report.points:
        lines.append(f"  {point.outcome:12}  {plain(point.reason)}")
        lines += [f"  {'':12}  {plain(reason)}" for reason in point.reasons]
    return "\n".join(lines) + "\n"


def render_json(report: GateReport) -> str:
    """The document itself."""
    return report.model_dump_json(indent=2) + "\n"


def render_csv(report: GateReport) -> str:
    """A header and a flat row for each sweep point."""
    output = StringIO()
    rows = [_flat(report, point) for point in report.points]
    writer = csv.DictWriter(output, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: cell(value) for key, value in row.items()} for row in rows)
    return output.getvalue()


def render_markdown(report: GateReport) -> str:
    """A heading, a table and the reasons, for the summary of a CI job."""
    title = f"## {escape(report.scenario)}: {report.outcome}"
    compared = f"`{report.stack}` against `{report.against}`, floor {percent(report.floor)}"
    lines = [title, "", compared, "", _line(["sweep point", *HEADERS])]
    lines += [_line(["---"] * (len(HEADERS) + 1))]
    lines += [_line([escape(text) for text in _cells(point)]) for point in report.points]
    lines += ["", *(f"- {escape(point.reason)}" for point in report.points)]
    reasons = dict.fromkeys(reason for point in report.points for reason in point.reasons)
    lines += [f"- {escape(reason)}" for reason in reasons]
    return "\n".join(lines) + "\n"


def render_junit(report: GateReport) -> str:
    """A test suite with a test case for each sweep point, as CI systems read it."""
    suite = ElementTree.Element("testsuite", name=plain(report.scenario))
    outcomes = [FAILURES.get(point.outcome, "passed") for point in report.points]
    suite.set("tests", str(len(outcomes)))
    for kind, plural in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(plural, str(outcomes.count(kind)))
    suite.set("time", f"{sum(point.seconds for point in report.points):.3f}")
    for point in report.points:
        _add_case(suite, report, point)
    tree = ElementTree.Element("testsuites")
    tree.append(suite)
    ElementTree.indent(tree)
    return ElementTree.tostring(tree, encoding="unicode", xml_declaration=True) + "\n"


FORMATS: Mapping[str, Callable[[GateReport], str]] = {
    "table": render_text,
    "json": render_json,
    "csv": render_csv,
    "markdown": render_markdown,
    "junit": render_junit,
}
"""Forms by name: those of `--format`, and the one of `--junit`."""


def _add_case(suite: ElementTree.Element, report: GateReport, point: GatePoint) -> None:
    """One test case; what did not pass says why, with all figures."""
    name = f"{label(report.stack, point.sweep)} against {report.against}"
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=f"accel_bench.gate.{plain(report.scenario)}",
        name=plain(name),
        time=f"{point.seconds:.3f}",
    )
    figures = "\n".join(
        f"{plain(header)}: {plain(text)}"
        for header, text in zip(HEADERS, _cells(point)[1:], strict=True)
    )
    details = "\n".join([figures, *map(plain, point.reasons)])
    kind = FAILURES.get(point.outcome)
    if kind is None:
        ElementTree.SubElement(case, "system-out").text = f"{plain(point.reason)}\n{details}"
        return
    found = ElementTree.SubElement(case, kind, message=plain(point.reason))
    if kind != "skipped":
        found.set("type", point.outcome)
    found.text = details


def _cells(point: GatePoint) -> list[str]:
    """One row, in the order of the headers."""
    speed = point.ratio
    return [
        label("", point.sweep).strip(" ()") or "all",
        point.outcome,
        f"{ratio(speed.median)} ({interval_text(speed, ratio)})" if speed else EMPTY,
        EMPTY if point.slower_by is None else percent(point.slower_by),
        EMPTY if point.slower_by_at_most is None else percent(point.slower_by_at_most),
        str(point.pairs),
        EMPTY if point.more_pairs is None else str(point.more_pairs),
        point.loss_verdict,
    ]


def _flat(report: GateReport, point: GatePoint) -> dict[str, str | float | None]:
    """One sweep point, flat, with the names of the document."""
    whole = report.model_dump(mode="json", exclude={"points", "outcome", "exit_code"})
    parts = point.model_dump(mode="json", exclude={"sweep", "ratio", "reasons"})
    return {
        **whole,
        "sweep": canonical_json(point.sweep),
        **parts,
        **interval_columns("ratio", point.ratio),
        "reasons": "; ".join(point.reasons),
    }


def _line(texts: list[str]) -> str:
    return f"| {' | '.join(texts)} |"

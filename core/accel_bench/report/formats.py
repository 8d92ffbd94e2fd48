"""Formats of a report, by the names of `--format`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from accel_bench.analysis.schema import Summary
from accel_bench.documents.escaping import printable_json
from accel_bench.errors import AccelBenchError, did_you_mean
from accel_bench.report.plain_html import render_plain_html
from accel_bench.report.render_csv import render_csv
from accel_bench.report.render_markdown import render_markdown
from accel_bench.report.render_terminal import render_terminal
from accel_bench.report.table import Report
from accel_bench.report.views.run_table import stacks_report


def render_json(document: Any) -> str:
    """Return models or plain values as JSON text; numbers that are not finite become null."""
    from pydantic_core import to_json

    text = to_json(document, indent=2, inf_nan_mode="null", fallback=str)
    return printable_json(text.decode()) + "\n"


def render_list(documents: Iterable[Any], at_once: int = 1) -> Iterator[str]:
    """Yield the JSON text of a list of documents in pieces of `at_once` documents each."""
    rest, before = iter(documents), "["
    while part := list(islice(rest, at_once)):
        yield before + render_json(part).removeprefix("[").removesuffix("\n]\n")
        before = ","
    yield "\n]\n" if before == "," else "[]\n"


FORMATS: dict[str, Callable[[Report], str]] = {
    "table": lambda report: render_terminal(report.sections, report.width),
    "wide": lambda report: render_terminal(report.sections, report.width, wide=True),
    "json": lambda report: render_json(report.document),
    "csv": lambda report: render_csv(report.flat),
    "markdown": lambda report: render_markdown(report.sections),
    "html": lambda report: render_plain_html(report.sections),
}
"""Functions that render a report, by the format's name."""


def render(summaries: Sequence[Summary], form: str, verbose: bool = False) -> str:
    """Return the comparison of the stacks of each scenario as text in the format named `form`.

    Markdown and HTML have all columns and notes, and the format `wide` has all columns. On the
    terminal, `verbose` adds columns and notes. Raises AccelBenchError for an unknown format.
    """
    whole = form in ("markdown", "html")
    wide = whole or form == "wide"
    return render_report(stacks_report(summaries, verbose or whole, wide), form)


def render_report(report: Report, form: str) -> str:
    """Return a report as text in the format named `form`. Raises AccelBenchError if unknown."""
    if form not in FORMATS:
        raise AccelBenchError(f"no report format {form!r}{did_you_mean(form, FORMATS)}")
    return FORMATS[form](report)

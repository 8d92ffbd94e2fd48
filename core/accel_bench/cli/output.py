"""Print lists and documents: tables for people, JSON for programs, with the same names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import typer

from accel_bench.report.table import Report, Section, keyed, listed

Format = Annotated[
    Literal["table", "json"], typer.Option("--format", help="How to print: for people or programs.")
]
AnyFormat = Annotated[
    Literal["table", "json", "csv", "markdown"], typer.Option("--format", help="How to print.")
]


def print_report(report: Report, form: str) -> None:
    """Print a report in a format."""
    from accel_bench.report.formats import render_report

    print_text(render_report(report, form).rstrip("\n"))


def print_text(text: str, end: str = "\n") -> None:
    """Print in the encoding of stdout; typer would print UTF-8 where ASCII is requested."""
    print(text, end=end, flush=True)


def print_json(value: Any) -> None:
    """Print one JSON document."""
    print_report(Report(document=value), "json")


def print_rows(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], output: str) -> None:
    """Print a list of objects in a format."""
    document = [{column: row[column] for column in columns} for row in rows]
    print_report(Report([Section(tables=[keyed(columns, rows)])], document), output)


def print_fields(document: Any, fields: Iterable[tuple[str, Any]], output: str) -> None:
    """Print one object: a row for each field for people, the document for programs."""
    table = listed(("key", "value"), fields)
    print_report(Report([Section(tables=[table])], document), output)

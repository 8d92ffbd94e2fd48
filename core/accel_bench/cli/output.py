"""Printing of lists and documents: tables for people, JSON for programs, with the same names."""

from __future__ import annotations

import inspect
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import wraps
from typing import Annotated, Any, Literal, get_args, get_type_hints

import typer

from accel_bench.report.table import Column, Report, Section, Table, listed

OutputFormat = Annotated[
    Literal["table", "json"],
    typer.Option("--format", help="How to print.", rich_help_panel="Output"),
]
AnyFormat = Annotated[
    Literal["table", "json", "csv", "markdown", "html"],
    typer.Option("--format", help="How to print.", rich_help_panel="Output"),
]

AT_ONCE = 1000
"""Number of a list's items that are printed together."""

_wide: ContextVar[bool] = ContextVar("wide", default=False)
"""True while a command with `--wide` runs."""

as_events: ContextVar[bool] = ContextVar("as_events", default=False)
"""True for a command with `--progress json`, whose messages are events too."""


def with_wide(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command with an option `--wide` if it prints tables, else the command unchanged."""
    hints = get_type_hints(command, include_extras=True)
    parameters = [
        param.replace(annotation=hints[param.name]) if isinstance(param.annotation, str) else param
        for param in inspect.signature(command).parameters.values()
    ]
    forms = (get_args(param.annotation) for param in parameters if param.name == "output")
    has_it = any(param.name == "wide" for param in parameters)
    if has_it or not any("table" in get_args(form[0]) for form in forms if form):
        return command

    @wraps(command)
    def widened(wide: bool, **values: Any) -> Any:
        before = _wide.set(wide)
        try:
            return command(**values)
        finally:
            _wide.reset(before)

    option = typer.Option("--wide", help="Print all columns of tables.", rich_help_panel="Output")
    own = inspect.Parameter(
        "wide", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option]
    )
    widened.__dict__["__signature__"] = inspect.Signature([*parameters, own])
    return widened


def form_of_output(form: str) -> str:
    """Return the format to print: `form`, the value of `--format`; `wide` for a table with
    `--wide`."""
    return "wide" if form == "table" and _wide.get() else form


def print_report(report: Report, form: str) -> None:
    """Print a report in the format `form`, a value of `--format`; a long JSON list in portions."""
    from accel_bench.report.formats import render_list, render_report

    if form == "json" and isinstance(report.document, list):
        for piece in render_list(report.document, AT_ONCE):
            print_text(piece, end="")
        return
    print_text(render_report(report, form_of_output(form)).rstrip("\n"))


def print_text(text: str, end: str = "\n") -> None:
    """Print text in the encoding of stdout; typer would print UTF-8 even if ASCII is requested."""
    print(text, end=end, flush=True)


def print_event(event: str, **keys: Any) -> None:
    """Print an event as a line of JSON on stderr: its name and `keys`, as in docs/automation.md."""
    typer.echo(json.dumps({"event": event, **keys}), err=True)


def print_aside(text: str, event: str = "note") -> None:
    """Print a message for the user on stderr, since stdout has the result. `event` is the kind of
    message, such as `warning`, which begins the line unless it is `note`. With `--progress json`
    the message is a JSON event."""
    if as_events.get():
        return print_event(event, reason=text)
    text = text if event == "note" else f"{event}: {text}"
    if sys.stderr.isatty():
        from accel_bench.report.render_terminal import wrapped

        width = shutil.get_terminal_size().columns
        lines = (wrapped(line, width, breaks=False) for line in text.split("\n"))
        text = "\n".join(piece for line in lines for piece in line)
    typer.echo(text, err=True)


def print_json(value: Any) -> None:
    """Print one JSON document."""
    print_report(Report(document=value), "json")


def print_rows(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], output: str) -> None:
    """Print rows as a list with the given columns in the format `output`, a value of `--format`.
    JSON and CSV have unformatted values."""
    document = [{column.key: row[column.key] for column in columns} for row in rows]
    print_report(Report([Section(tables=[Table(columns, rows)])], document), output)


def print_fields(document: Any, fields: Iterable[tuple[str, Any]], output: str) -> None:
    """Print one object in the format `output`: a table of `fields` for people, else `document`."""
    table = listed(("key", "value"), fields)
    print_report(Report([Section(tables=[table])], document), output)

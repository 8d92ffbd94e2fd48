"""Print lists and documents: tables for people, JSON for programs, with the same names."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import typer

Format = Annotated[
    Literal["table", "json"], typer.Option("--format", help="How to print: for people or programs.")
]

FILE_WIDTH = 240
"""Columns of a table that is not printed on a terminal."""


def print_json(value: Any) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table; square brackets in cells are text, not markup."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # What is not printed on a terminal goes to a file or a program: nothing is broken into lines.
    width = None if sys.stdout.isatty() else FILE_WIDTH
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(Text(column), overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(value)) for value in row))
    Console(width=width, highlight=False).print(table)


def print_rows(columns: Sequence[str], rows: Sequence[dict[str, Any]], output: str) -> None:
    """Print a list of objects in the wanted format."""
    if output == "json":
        print_json([{column: row[column] for column in columns} for row in rows])
    else:
        print_table(columns, [[row[column] for column in columns] for row in rows])


def cell(value: Any) -> str:
    """A value as it stands in a table: lists and settings in one line, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(str(item) for item in value)
    return str(value)

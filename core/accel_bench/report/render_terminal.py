"""Sections for a terminal: the answer first, tables as wide as their numbers, notes under them."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from io import StringIO
from textwrap import fill
from typing import NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.segment import Segment, Segments
from rich.table import Table as Grid
from rich.text import Text

from accel_bench.documents.shown import plain
from accel_bench.report.table import Column, Section, Table
from accel_bench.result import Status


class Layout(NamedTuple):
    """How much room a table takes."""

    names: int
    """Columns of a name before it goes on in the next line."""

    gap: int
    """Columns between two columns."""

    stacked: tuple[str, ...] = ()
    """Kinds of columns whose cells have their parts below one another."""


LAYOUTS = (
    Layout(26, 2),
    Layout(13, 2),
    Layout(13, 2, ("word",)),
    Layout(13, 1, ("word",)),
    Layout(13, 1, ("word", "number")),
)
"""The first that fits is taken."""

LONG_TABLE = 500
"""Rows of the longest table whose cells are wrapped, folded and coloured."""

HEADER_WIDTH = 11
"""Columns after which the title of a column of names goes on in the next line."""

UNBROKEN = 100_000
"""Width at which nothing is wrapped."""

STYLES = {
    **{status.value: "red" for status in Status if not status.completed},
    **dict.fromkeys(("slower", "different", "regression", "corrupt", "by design"), "red"),
    **dict.fromkeys(("inconclusive", "cannot tell", "degraded", "skipped"), "yellow"),
    **dict.fromkeys(("unfinished", "within what"), "yellow"),
    **dict.fromkeys(("faster", "passed"), "green"),
}
"""Colours of verdicts, outcomes and statuses."""


def render_terminal(sections: Sequence[Section], width: int | None = None) -> str:
    """Return text as wide as the terminal, with its colours.

    Where the output is none there are no colours, and `width` columns; without it nothing is
    wrapped.
    """
    terminal = sys.stdout.isatty()
    console = Console(
        file=StringIO(),
        width=None if terminal else width or UNBROKEN,
        force_terminal=terminal,
        color_system="auto" if terminal else None,
        highlight=False,
    )
    for number, section in enumerate(sections):
        if number:
            console.print()
        _print(section, console)
    assert isinstance(console.file, StringIO)
    return "".join(line.rstrip() + "\n" for line in console.file.getvalue().splitlines())


def folded(name: str, width: int) -> str:
    """Return a name in lines of at most that width, broken behind `-`, `_`, `+` and `.`."""
    lines = [""]
    for part in re.findall(r"[^-_+.]*[-_+.]+|[^-_+.]+", name):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _print(section: Section, console: Console) -> None:
    """Print one section; all text is `Text`, so that nothing in a name is taken for markup."""
    blocks: list[list[RenderableType]] = [
        [Text(plain(text), style="bold") for text in (section.title, section.answer) if text],
        [Segments([Segment(f"{plain(line)}\n")]) for line in section.text.splitlines()],
        *([_fitted(table, console), *_dim(table.notes)] for table in section.tables),
        _dim(section.notes),
    ]
    for number, block in enumerate(block for block in blocks if block):
        if number:
            console.print()
        for part in block:
            console.print(part, crop=False, end="" if isinstance(part, Segments) else "\n")


def _dim(notes: Sequence[str]) -> list[RenderableType]:
    return [Text(plain(note), style="dim") for note in notes]


def _fitted(table: Table, console: Console) -> Segments:
    """Lay a table out in the width that there is; its numbers are never broken."""
    if len(table.rows) > LONG_TABLE:
        return Segments(_long(table))
    unlimited = console.options.update(width=UNBROKEN)
    for layout in LAYOUTS:
        grid = _grid(table, layout)
        needed = console.measure(grid, options=unlimited).maximum
        if needed <= console.width:
            break
    wraps = any(column.kind == "text" for column in table.columns)
    width = console.width if wraps else max(console.width, needed)
    return Segments(console.render(grid, console.options.update(width=width)))


def _long(table: Table) -> list[Segment]:
    """Lay a long table out by its widest cells, with nothing wrapped: rich takes 2 ms a row."""
    rows = [[column.text(row) for column in table.columns] for row in table.rows]
    headers = [[column.header, plain(column.unit)] for column in table.columns]
    widths = [
        max(map(_width, (*header, *cells)))
        for header, cells in zip(headers, zip(*rows, strict=True), strict=True)
    ]
    heads = [line for line in zip(*headers, strict=True) if any(line)]
    rule = ["─" * width for width in widths]
    right = [column.kind == "number" for column in table.columns]
    lines = [f"{plain(table.title)}\n"] if table.title else []
    for cells in (*heads, rule, *rows):
        padded = [
            " " * (width - _width(cell)) + cell
            if to_the_right
            else cell + " " * (width - _width(cell))
            for cell, width, to_the_right in zip(cells, widths, right, strict=True)
        ]
        lines.append("  ".join(padded).rstrip() + "\n")
    return list(map(Segment, lines))


def _width(cell: str) -> int:
    """Return the columns of the terminal that a text takes."""
    return len(cell) if cell.isascii() else cell_len(cell)


def _grid(table: Table, layout: Layout) -> Grid:
    grid = Grid(
        title=Text(plain(table.title), style="bold") if table.title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, layout.gap - 1, 0, 0),
    )
    for column in table.columns:
        title = fill(column.header, HEADER_WIDTH) if column.kind == "name" else column.header
        grid.add_column(
            Text(f"{title}\n{plain(column.unit)}".rstrip(), style="bold"),
            justify="right" if column.kind == "number" else "left",
            no_wrap=column.kind != "text",
            overflow="fold",
        )
    for row in table.rows:
        grid.add_row(*(_cell(column, row, layout) for column in table.columns))
    return grid


def _cell(column: Column, row: object, layout: Layout) -> Text:
    parts = column.parts(row)
    text = " ".join(parts)
    if column.kind in layout.stacked:
        # A word may be a phrase; an interval stays on its line.
        text = "\n".join(text.split() if column.kind == "word" else parts)
    if column.kind == "name":
        text = folded(text, layout.names)
    return Text(text, style=STYLES.get(parts[0], "") if column.kind == "word" else "")

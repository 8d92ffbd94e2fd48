"""Sections for a terminal: headline, tables as wide as their numbers, notes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from itertools import zip_longest
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

from accel_bench.analysis.wording import TONES
from accel_bench.documents.escaping import plain
from accel_bench.report.table import EMPTY, Column, Section, Table

UNBROKEN = 100_000
"""Width at which nothing is wrapped, in columns of the terminal."""


class TableLayout(NamedTuple):
    """Layout of a table on a terminal, which determines its width."""

    names: int
    """Width of a name before it continues on the next line, in columns of the terminal."""

    gap: int
    """Gap between two columns of a table, in columns of the terminal."""

    stacked: tuple[str, ...] = ()
    """Kinds of columns whose cells have one part on each line, such as value and interval."""

    unit: int = 15
    """Width of a unit before it continues on the next line, in columns of the terminal."""


LAYOUTS = (
    TableLayout(UNBROKEN, 2),
    TableLayout(26, 2),
    TableLayout(13, 2),
    TableLayout(13, 2, ("word",)),
    TableLayout(13, 1, ("word",)),
    TableLayout(13, 1, ("word", "number")),
    TableLayout(13, 1, ("word", "number"), 9),
)
"""Layouts in order of preference; the first that fits is used."""

READABLE_TEXT, LEAST_TEXT = 24, 10
"""Least widths of a text column, first while other columns can be left out, and then without."""

EMPTY_RANK = 1000
"""Number added to the rank of a column without values, so that it is left out first."""

WHOLE_WORD = 20
"""Width of the longest word in a text that is never broken."""

BREAKS = re.compile(r"(?<=[-_+/=])|(?<=\.)(?!\d)")
"""Places at which a long word may be broken; none lies within a number."""

HEADER_WIDTH = 13
"""Width after which the title of a column may continue on the next line."""

COLOURS: Mapping[str, str] = {
    "good": "green",
    "warn": "yellow",
    "bad": "red",
    "quiet": "bright_black",
}
"""Terminal colors by the tone of a text."""


def render_terminal(
    sections: Sequence[Section], width: int | None = None, wide: bool = False
) -> str:
    """Return sections as text that fits the width of the terminal, with its colors.

    Without a terminal there are no colors, and the width is the variable COLUMNS or `width`;
    without both nothing is wrapped. With `wide`, tables have all their columns at any width.
    """
    terminal = sys.stdout.isatty()
    stated = os.environ.get("COLUMNS", "")
    columns = int(stated) if stated.isdecimal() and int(stated) else width or UNBROKEN
    console = Console(
        file=StringIO(),
        width=None if terminal else columns,
        force_terminal=terminal,
        color_system="auto" if terminal else None,
        highlight=False,
    )
    for number, section in enumerate(sections):
        if number:
            console.print()
        _print(section, console, UNBROKEN if wide else console.width)
    assert isinstance(console.file, StringIO)
    return "".join(line.rstrip() + "\n" for line in console.file.getvalue().splitlines())


def wrapped(text: str, width: int, breaks: bool = True) -> list[str]:
    """Return the lines of a text that is broken at blanks to fit a width.

    With `breaks` a longer word is broken behind `-`, `_`, `+`, `/`, `=` and `.`, though never
    within a number; otherwise it is longer than its line.
    """
    words = text.lstrip(" ")
    lines = [" " * (len(text) - len(words))]
    for word in words.split(" "):
        blank = " " if lines[-1].strip() else ""
        for piece in _pieces(word, width) if breaks else (word,):
            if lines[-1].strip() and _width(lines[-1] + blank + piece) > width:
                lines.append("")
                blank = ""
            lines[-1] += blank + piece
            blank = ""
    return lines


def _print(section: Section, console: Console, width: int) -> None:
    """Print one section as rich's `Text`, so that no name is parsed as markup."""
    blocks: list[list[RenderableType]] = [
        _prose([text for text in (section.title, section.headline) if text], "bold", console),
        [Segments([Segment(f"{plain(line)}\n")]) for line in section.text.splitlines()],
        *(_table(table, width, console) for table in section.tables),
        _prose(section.notes, "dim", console),
    ]
    for number, block in enumerate(block for block in blocks if block):
        if number:
            console.print()
        for part in block:
            end = "" if isinstance(part, Segments) else "\n"
            console.print(part, crop=False, overflow="ignore", end=end)


def _prose(texts: Sequence[str], style: str, console: Console) -> list[RenderableType]:
    """Return texts broken into lines at blanks; a path longer than a line stays whole."""
    lines = (wrapped(plain(text), console.width, breaks=False) for text in texts)
    return [Text("\n".join(parts), style=style) for parts in lines]


def _table(table: Table, width: int, console: Console) -> list[RenderableType]:
    """Return title, rows and notes of a table that fits a width; a note names hidden columns."""
    drawn = _fitted([_Cells(column, table.rows) for column in table.columns], width)
    title = _prose([table.title] if table.title else [], "bold", console)
    shown = {cells.column.key for cells in drawn.shown}
    lacking = [column.header for column in table.columns if column.key not in shown]
    left_out = f"left out for want of room: {', '.join(lacking)}; --wide shows all"
    notes = [left_out, *table.notes] if lacking else table.notes
    return [*title, Segments(drawn.segments()), *_prose(notes, "dim", console)]


class _Cells:
    """One column's cells as texts, with the width that they need in each layout."""

    def __init__(self, column: Column, rows: Sequence[Any]) -> None:
        self.column = column
        self.rows = [column.parts(row) for row in rows]
        empty = all(parts == (EMPTY,) for parts in self.rows)
        self.rank = column.rank and column.rank + empty * EMPTY_RANK
        self._widest: dict[int | bool, int] = {}

    def line(self, parts: tuple[str, ...], layout: TableLayout) -> list[str]:
        """Return a cell's lines in a layout; `parts` are its texts. Long prose is wrapped later."""
        if self.column.kind == "name":
            return wrapped(" ".join(parts), layout.names)
        if self.column.kind not in layout.stacked:
            return [" ".join(parts)]
        # A word may be a phrase; an interval, or a distance with its limit, stays on its line.
        phrase = self.column.kind == "word" and len(parts) == 1
        return " ".join(parts).split() if phrase else list(parts)

    def heads(self, layout: TableLayout, width: int) -> list[str]:
        """Return the lines of the column's header; its cells are `width` characters wide."""
        narrow = layout.names < UNBROKEN and self.column.kind != "text"
        unit = wrapped(plain(self.column.unit), max(width, layout.unit) if narrow else UNBROKEN)
        room = max(width, HEADER_WIDTH, *map(_width, unit)) if narrow else UNBROKEN
        return [*wrapped(self.column.header, room), *(unit if self.column.unit else ())]

    def widest(self, layout: TableLayout) -> int:
        """Return the width that the column needs in a layout if nothing is wrapped."""
        key = layout.names if self.column.kind == "name" else self.column.kind in layout.stacked
        if key not in self._widest:
            lines = (line for parts in self.rows for line in self.line(parts, layout))
            self._widest[key] = max(map(_width, lines), default=0)
        cells = self._widest[key]
        return max(cells, *map(_width, self.heads(layout, cells)))

    def least(self, widest: int, text: int) -> int:
        """Return the width to which the column can shrink: prose to `text` or its longest word, and
        any other column not below `widest`, its width without wrapping."""
        if self.column.kind != "text" or widest <= text:
            return widest
        words = {word for parts in self.rows for part in parts for word in part.split(" ")}
        pieces = (piece for word in words for piece in _pieces(word, WHOLE_WORD))
        return max(text, *map(_width, pieces), _width(self.column.header))


class _Drawing(NamedTuple):
    """Table in one layout, with the columns that are shown and their widths."""

    shown: Sequence[_Cells]
    layout: TableLayout
    widths: Sequence[int]

    def segments(self) -> Iterator[Segment]:
        """Yield the header, a rule, and the lines of each row."""
        pairs = list(zip(self.shown, self.widths, strict=True))
        heads = [shown.heads(self.layout, width) for shown, width in pairs]
        most = max(map(len, heads), default=0)
        heads = [[""] * (most - len(lines)) + lines for lines in heads]
        yield from self._lines(heads, [Style(bold=True)] * len(heads))
        yield Segment("─" * (sum(self.widths) + self.layout.gap * (len(heads) - 1)) + "\n")
        for row in zip(*(shown.rows for shown in self.shown), strict=True):
            cells = [self._cell(shown, own, n) for (shown, n), own in zip(pairs, row, strict=True)]
            words = (
                own[0] if shown.column.kind == "word" else ""
                for (shown, _), own in zip(pairs, row, strict=True)
            )
            yield from self._lines(cells, [_style(word) for word in words])

    def _cell(self, one: _Cells, parts: tuple[str, ...], width: int) -> list[str]:
        lines = one.line(parts, self.layout)
        if one.column.kind != "text" or _width(lines[0]) <= width:
            return lines
        return wrapped(lines[0], width)

    def _lines(
        self, cells: Sequence[list[str]], styles: Sequence[Style | None]
    ) -> Iterator[Segment]:
        """Yield the lines of one row, with each cell padded to its column's width and styled."""
        gap = " " * self.layout.gap
        for texts in zip_longest(*cells, fillvalue=""):
            before = ""
            for shown, width, text, style in zip(
                self.shown, self.widths, texts, styles, strict=True
            ):
                room = " " * (width - _width(text))
                left, right = (room, "") if shown.column.kind == "number" else ("", room)
                if style and text:
                    yield Segment(before + left)
                    yield Segment(text, style)
                    before = right + gap
                else:
                    before += left + text + right + gap
            yield Segment(before.rstrip() + "\n")


def _fitted(cells: Sequence[_Cells], width: int) -> _Drawing:
    """Return the table in the first layout that fits the width, or in the narrowest.

    Numbers are never wrapped: if the table is too wide, columns of the highest rank are left out.
    """
    ranks = sorted({column.rank for column in cells} - {0}, reverse=True)
    fewer = [cells, *([column for column in cells if column.rank < rank] for rank in ranks)]
    tried = [(shown, layout, READABLE_TEXT) for shown in fewer for layout in LAYOUTS]
    tried += [(fewer[-1], layout, LEAST_TEXT) for layout in LAYOUTS]
    for shown, layout, text in tried:
        widths = [column.widest(layout) for column in shown]
        room = width - layout.gap * (len(shown) - 1)
        if sum(widths) <= room:
            return _Drawing(shown, layout, widths)
        least = [column.least(own, text) for column, own in zip(shown, widths, strict=True)]
        if sum(least) <= room:
            return _Drawing(shown, layout, _narrowed(widths, least, room))
    return _Drawing(shown, layout, least)


def _narrowed(widest: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Return column widths whose sum fits `room`: the widest shrink first, none below `least`."""
    widths = [min(wide, max(room, own)) for wide, own in zip(widest, least, strict=True)]
    while sum(widths) > room:
        wider = [place for place, own in enumerate(least) if widths[place] > own]
        widths[max(wider, key=widths.__getitem__)] -= 1
    return widths


def _pieces(word: str, width: int) -> Sequence[str]:
    return (word,) if _width(word) <= width else BREAKS.split(word)


def _style(word: str) -> Style | None:
    tone = TONES.get(word)
    return Style.parse(COLOURS[tone]) if tone else None


def _width(cell: str) -> int:
    return len(cell) if cell.isascii() else cell_len(cell)

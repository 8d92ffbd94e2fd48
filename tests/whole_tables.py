"""Whether a table is whole: nothing of its cells is cut off, whatever the terminal's width."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from accel_bench.report.render_terminal import BREAKS, render_terminal
from accel_bench.report.table import Column, Section, Table

LEFT_OUT = "left out for want of room: "


def assert_whole(table: Table) -> None:
    """Assert that a table fits 80 and 120 columns, and that all its cells are whole there."""
    for width in (80, 120):
        text = render_terminal([Section(tables=[replace(table, title="", notes=())])], width)
        head, rest = text.split("──\n", 1)
        body, _, note = rest.partition(LEFT_OUT)
        assert max(map(len, head.splitlines() + body.splitlines())) <= width
        lacking = " ".join(note.partition(";")[0].split()).split(", ") if note else ()
        shown = [column for column in table.columns if column.header not in lacking]
        assert pieces(body) == pieces(" ".join(cells(shown, table.rows)))
        whole = [column for column in shown if column.kind in ("number", "word")]
        assert set(" ".join(cells(whole, table.rows)).split()) <= set(body.split())


def cells(columns: Sequence[Column], rows: Sequence[Any]) -> Iterator[str]:
    """The cells of a table as people read them."""
    return (column.text(row) for row in rows for column in columns)


def pieces(text: str) -> Counter[str]:
    """What stands between blanks, and between places where long names may be broken."""
    return Counter(piece for word in text.split() for piece in BREAKS.split(word) if piece)

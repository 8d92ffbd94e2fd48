"""No format lets text from elsewhere act on a terminal, a page or a spreadsheet."""

from __future__ import annotations

import csv
from io import StringIO

import pytest
from rich.console import Console

from accel_bench.cli.progress import LineReporter
from accel_bench.report.formats import FORMATS, render_report
from accel_bench.report.table import Column, Report, Section, Table, keyed

HOSTILE = "\x1b]0;owned\x07 \x9b2J \u202eexe.\u200b \r\x00"


def hostile_report() -> Report:
    """A report with the text in every place that a name, a reason or a key can take."""
    cells = [Column(HOSTILE, str, kind=kind, unit=HOSTILE) for kind in ("text", "name", "word")]
    table = Table(cells, [HOSTILE], title=HOSTILE, notes=[HOSTILE])
    section = Section(HOSTILE, HOSTILE, HOSTILE, [table], [HOSTILE])
    flat = keyed([HOSTILE], [{HOSTILE: HOSTILE}, {HOSTILE: [HOSTILE]}, {HOSTILE: {HOSTILE: 1}}])
    return Report([section], {HOSTILE: HOSTILE}, flat)


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_shows_it_as_escapes(form: str) -> None:
    text = render_report(hostile_report(), form)
    assert text.replace("\n", "").isprintable()
    assert "owned" in text


def test_progress_shows_it_as_escapes() -> None:
    console = Console(file=StringIO(), width=1000)
    LineReporter(console)._print(HOSTILE)
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().replace("\n", "").isprintable()


@pytest.mark.parametrize("text", ["=1+1", "\u200b=1", "\n=1", "\uff1d1+1", "@SUM(A1)", "-cmd"])
def test_a_text_is_no_formula_and_a_number_stays_one(text: str) -> None:
    table = keyed(["key"], [{"key": text}, {"key": -1.5}])
    rows = list(csv.reader(StringIO(FORMATS["csv"](Report(flat=table)))))
    assert not rows[1][0].lstrip("\n").startswith(("=", "@", "-", "\uff1d"))
    assert rows[2] == ["-1.5"]

"""A table for the terminal, with what it means in one sentence under it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from io import StringIO
from textwrap import fill

from rich import box
from rich.console import Console
from rich.segment import Segments
from rich.table import Table
from rich.text import Text

from accel_bench.analysis.conclusion import sentence
from accel_bench.analysis.schema import ExperimentSummary, LadderStep, Summary
from accel_bench.report import cells
from accel_bench.report.ladder_cells import (
    HEADERS,
    ladder_notes,
    ladders,
    rung_name,
    step_cells,
)
from accel_bench.report.notes import memory_note, reason_notes, seed_notes, stack_notes, use_notes

WIDTH = 100
"""Columns of a table that is not printed on a terminal."""

NAME_WIDTH = 26
"""Columns after which a long name goes on in the next line."""

NARROW_NAME_WIDTH = 13
"""The same where the console is narrow."""

HEADER_WIDTH = 11
"""Columns after which the header of a swept key goes on in the next line."""

NUMBERS = (
    "tokens/s\n±95 %",
    "ratio\n[95 %]",
    "step ms\np50/p95",
    "peak\nMiB",
    "loss\nat end",
    "\nloss",
    "\nverdict",
    "\nstatus",
)
"""Headers after those of the stack and the sweep."""

STYLES = {"faster": "green", "slower": "red", "different": "red", "inconclusive": "yellow"}
"""Colours of verdicts."""


def render_table(summaries: Sequence[Summary]) -> str:
    """Return the tables as plain text without colours."""
    output = StringIO()
    print_table(summaries, Console(file=output, width=WIDTH, color_system=None))
    return "".join(line.rstrip() + "\n" for line in output.getvalue().splitlines())


def print_table(summaries: Sequence[Summary], console: Console) -> None:
    """Print one table for each scenario, as wide as its numbers need on a narrow console."""
    for summary in summaries:
        _print_fitted(console, partial(_table, summary))
        for title, steps in ladders(summary).items():
            console.print()
            _print_fitted(console, partial(_ladder, title, steps))
            for note in ladder_notes(steps):
                console.print(Text(note, style="dim"))
        if summary.ladder:
            console.print()
        for line in _lines(summary):
            console.print(line)
        console.print()


def _print_fitted(console: Console, make: Callable[[int], Table]) -> None:
    """Print a table; one that is too wide breaks its names, but never its numbers."""
    table = make(NAME_WIDTH)
    needed = _needed(console, table)
    if needed > console.width:
        names = max((len(str(cell)) for cell in table.columns[0].cells), default=0)
        table = make(max(NARROW_NAME_WIDTH, min(names, NAME_WIDTH) - needed + console.width))
        needed = _needed(console, table)
    options = console.options.update(width=max(console.width, needed))
    console.print(Segments(console.render(table, options)), crop=False, end="")


def _needed(console: Console, table: Table) -> int:
    """Columns that nothing is cut in."""
    return console.measure(table, options=console.options.update(width=10_000)).maximum


def _empty_table(title: str) -> Table:
    """A table without columns."""
    table = Table(
        title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, show_edge=False
    )
    table.padding = (0, 0)
    return table


def _ladder(title: str, steps: Sequence[LadderStep], name_width: int) -> Table:
    """A row for each item of a ladder."""
    table = _empty_table(title)
    table.add_column(Text("\nrung"), overflow="fold", max_width=name_width)
    for header in HEADERS:
        left = header == "\nloss"
        table.add_column(Text(header), justify="left" if left else "right", no_wrap=True)
    for step in steps:
        texts = [cells.folded(rung_name(step), name_width), *step_cells(step)]
        table.add_row(*(Text(text, style=STYLES.get(text, "")) for text in texts))
    return table


def _table(summary: Summary, name_width: int) -> Table:
    """Rows and headers. All text is `Text`, so that nothing in a name is taken for markup."""
    keys = cells.sweep_keys(summary)
    table = _empty_table(cells.plain(summary.scenario))
    for header in ("stack", *cells.sweep_headers(keys)):
        words = fill(header.replace("_", " "), HEADER_WIDTH)
        text = Text(words if "\n" in words else "\n" + words)
        table.add_column(text, overflow="fold", max_width=name_width)
    for header in NUMBERS:
        right = header in NUMBERS[:5]
        table.add_column(Text(header), justify="right" if right else "left", no_wrap=True)
    for row in summary.experiments:
        name = cells.folded(cells.plain(row.stack), name_width)
        table.add_row(Text(name), *_cells(row, keys, summary.baseline))
    return table


def _cells(row: ExperimentSummary, keys: Sequence[str], baseline: str) -> list[Text]:
    """One row after its name, in the order of the headers."""
    texts = [
        *cells.sweep_values(row, keys),
        cells.tokens_per_second(row),
        cells.speed_up(row, baseline),
        cells.step_milliseconds(row),
        cells.peak_mebibytes(row),
        cells.last_loss(row),
        cells.loss_verdict(row, baseline),
        cells.verdict(row, baseline),
    ]
    status = Text(row.status.value, style="" if row.status.completed else "red")
    return [*(Text(text, style=STYLES.get(text, "")) for text in texts), status]


def _lines(summary: Summary) -> list[Text]:
    """Stacks, reasons and the sentence."""
    stacks = stack_notes(summary)
    width = max((len(name) for name in stacks), default=0)
    lines = [f"{name:{width}}  {differs}" for name, differs in stacks.items()]
    lines += [*use_notes(summary), *seed_notes(summary)]
    lines += [*reason_notes(summary), memory_note(summary)]
    said = Text(cells.plain(sentence(summary)), style="bold")
    return [*(Text(line, style="dim") for line in lines if line), said]

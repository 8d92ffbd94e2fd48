"""What a page shows, ready for HTML and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from accel_bench.documents.program import __version__
from accel_bench.report.table import Column, Table
from accel_bench_report.page.memory_parts import MemoryView
from accel_bench_report.page.plot_svg import COLOURS
from accel_bench_report.page.plots import Plot
from accel_bench_report.page.scenario import PageRow
from accel_bench_report.page.waterfall import WaterfallView
from accel_bench_report.tables.expenses import EXCLUDED

TOKENS = 1e9
"""Tokens to train on, until a reader writes another number."""

LONGEST_TEXT = 400
"""Letters of a reason or an error that a table shows; the log has all of it."""


@dataclass(frozen=True)
class RowView:
    """One row of the table of stacks."""

    id: str
    name: str

    stack: str

    number: int
    """Place of the stack on the page: its colour and its shape in plots."""

    row: PageRow
    cells: Sequence[tuple[Column, tuple[str, ...], str]]
    origin: str
    origin_title: str

    configuration: Sequence[tuple[str, bool]]
    """What was in effect, and whether that differs from the baseline."""

    reason: str = ""
    command: str = ""
    """What repeats a run of it; with names taken out, the session's command for this stack."""

    shared_command: str = ""
    """The session's command for this stack, as others can give it."""

    shape: int = 0
    """Number that gives its marks in plots another shape, where a stack has several rows."""

    log: str = ""
    facts: Sequence[tuple[str, str]] = ()
    differences: Table | None = None

    @property
    def colour(self) -> int:
        """Number of its colour in the style sheet."""
        return self.number % COLOURS

    @property
    def why(self) -> str:
        """Why it is not ranked."""
        return self.row.why_not_ranked

    @property
    def summary(self) -> str:
        """What the stack adds, in a line."""
        return clipped(self.row.summary.differs, 120)


class Group(NamedTuple):
    """Rows of one sweep point."""

    title: str
    rows: Sequence[RowView]


class Job(NamedTuple):
    """What a job of the reader's takes with a stack."""

    row: RowView
    speed: float
    low: float | str
    high: float | str
    rate: str
    hours: str


@dataclass(frozen=True)
class ScenarioView:
    """One scenario of a page."""

    id: str
    name: str
    answer: str

    doubts: Sequence[str]
    """Notes that decide whether the figures are believed."""

    more: Sequence[str]
    counts: str
    measured: str
    columns: Sequence[Column]
    groups: Sequence[Group]
    figures: Sequence[Plot]
    waterfalls: Sequence[WaterfallView]
    memories: Sequence[MemoryView]
    memory_note: str
    jobs: Sequence[Job]
    learning: Sequence[Table]
    """How the stacks learned; empty where nothing was evaluated."""

    tables: Sequence[Table]
    machine: Table
    notes: Sequence[str]
    tokens: str = f"{TOKENS:,.0f}"
    excluded: str = EXCLUDED
    legend: str = (
        "The best stands first; whether it is better, the verdict says. Intervals of speeds are "
        "95 % over processes. The ratio to the baseline is paired, round by round; its interval "
        "leaves out 1 if the verdict sees a difference. Below each stack stands what was really in "
        "effect; bold differs from the baseline."
    )

    @property
    def rows(self) -> list[RowView]:
        """Rows of all sweep points."""
        return [row for group in self.groups for row in group.rows]

    @property
    def contents(self) -> list[tuple[str, str]]:
        """Parts of the page: ends of their ids, and titles."""
        parts = {
            "stacks": ("Stacks", True),
            "plots": ("Plots", self.figures),
            "time": ("Where the time goes", self.waterfalls),
            "memory": ("Memory", self.memories),
            "job": ("Your job", self.jobs),
            "learning": ("Does it still learn", self.learning),
            "tables": ("More tables", self.tables),
            "each": ("Each stack", True),
            "machine": ("Machine", True),
            "notes": ("Notes", self.notes),
        }
        return [(key, title) for key, (title, there) in parts.items() if there]


@dataclass(frozen=True)
class Page:
    """All of a page."""

    title: str
    written: str
    scenarios: Sequence[ScenarioView]
    runs: str
    overview: Table | None
    history: Sequence[Plot]
    both_modes: Sequence[Table]
    """Of each model that is trained and answers requests on this page."""

    notes: Sequence[str]
    made_by: str
    version: str = __version__


def clipped(text: str, most: int = LONGEST_TEXT) -> str:
    """Return a text of at most so many letters."""
    return text if len(text) <= most else f"{text[: most - 4]} ..."

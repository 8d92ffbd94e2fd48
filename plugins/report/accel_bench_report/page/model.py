"""Contents of a page, ready for rendering as HTML and Markdown."""

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
"""Default number of tokens of the reader's job, which the reader can edit on the page."""

LONGEST_TEXT = 400
"""Maximum number of characters of a reason or error in a table; the log has all of it."""


@dataclass(frozen=True)
class RowView:
    """One row of the table of stacks."""

    id: str
    name: str

    stack: str

    number: int
    """Index of the stack on the page, which gives its colour and its marker in plots."""

    row: PageRow
    cells: Sequence[tuple[Column, tuple[str, ...], str]]
    origin: str
    origin_title: str

    configuration: Sequence[tuple[str, bool]]
    """Effective settings as text, each with whether it differs from the baseline."""

    reason: str = ""
    command: str = ""
    """Command that repeats a run; on an anonymous page, the session's command for this stack."""

    shared_command: str = ""
    """Command that repeats the session with this stack, without local paths."""

    shape: int = 0
    """Offset of the marker in plots, for stacks with several rows."""

    log: str = ""
    facts: Sequence[tuple[str, str]] = ()
    differences: Table | None = None

    @property
    def colour(self) -> int:
        """Index of the row's colour in the style sheet."""
        return self.number % COLOURS

    @property
    def why(self) -> str:
        """Reason why the row is not ranked; empty if ranked."""
        return self.row.why_not_ranked

    @property
    def summary(self) -> str:
        """Changes that the stack makes to the baseline, in a line."""
        return clipped(self.row.summary.differs, 120)


class Group(NamedTuple):
    """Rows of one sweep point."""

    title: str
    rows: Sequence[RowView]


class Job(NamedTuple):
    """Hours and speed of the reader's own job with one stack."""

    row: RowView
    speed: float
    low: float | str
    high: float | str
    rate: str
    hours: str


@dataclass(frozen=True)
class ScenarioView:
    """Contents of the section about one scenario."""

    id: str
    name: str
    answer: str

    doubts: Sequence[str]
    """Notes that question the validity of the figures."""

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
    """Tables of learning; empty if nothing was evaluated."""

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
        """Anchors and titles of the section's parts that have contents."""
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
    """Contents of a whole page."""

    title: str
    written: str
    scenarios: Sequence[ScenarioView]
    runs: str
    overview: Table | None
    history: Sequence[Plot]
    both_modes: Sequence[Table]
    """Tables of models with both training and inference on the page."""

    notes: Sequence[str]
    made_by: str
    version: str = __version__


def clipped(text: str, most: int = LONGEST_TEXT) -> str:
    """Return a text shortened to at most `most` characters."""
    return text if len(text) <= most else f"{text[: most - 4]} ..."

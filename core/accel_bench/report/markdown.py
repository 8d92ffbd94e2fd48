"""The summaries as Markdown tables, for an issue or a README."""

from __future__ import annotations

import re
from collections.abc import Sequence

from accel_bench.analysis.conclusion import sentence
from accel_bench.analysis.schema import ExperimentSummary, LadderStep, Summary
from accel_bench.report import cells
from accel_bench.report.ladder_cells import HEADERS as LADDER_HEADERS
from accel_bench.report.ladder_cells import ladder_notes, ladders, rung_name, step_cells
from accel_bench.report.notes import memory_note, reason_notes, seed_notes, use_notes

HEADERS = (
    "tokens/s (±95 %)",
    "ratio [95 %]",
    "step ms p50/p95",
    "peak MiB",
    "loss at end",
    "loss",
    "verdict",
    "status",
    "differs",
)
"""Headers after those of the stack and the sweep."""

_MARKUP = re.compile(r"([\\`*\[\]|<>&#~])")


def render_markdown(summaries: Sequence[Summary]) -> str:
    """Return one section for each scenario: table, sentence, notes."""
    return "\n".join(_section(summary) for summary in summaries)


def escape(text: str) -> str:
    """Make text safe inside a table: one line, and nothing in it is markup, HTML or a new cell."""
    return _MARKUP.sub(r"\\\1", cells.plain(text))


def _section(summary: Summary) -> str:
    """One scenario."""
    keys = cells.sweep_keys(summary)
    headers = ["stack", *cells.sweep_headers(keys), *HEADERS]
    rows = [_cells(row, keys, summary.baseline) for row in summary.experiments]
    found = (
        *use_notes(summary),
        *seed_notes(summary),
        *reason_notes(summary),
        memory_note(summary),
    )
    notes = [note for note in found if note]
    lines = [f"## {escape(summary.scenario)}", "", _line(headers), _line(["---"] * len(headers))]
    lines += [_line([escape(cell) for cell in row]) for row in rows]
    for title, steps in ladders(summary).items():
        lines += ["", *_ladder(title, steps)]
    lines += ["", f"**{escape(sentence(summary))}**", ""]
    lines += [f"- {escape(note)}" for note in notes]
    return "\n".join(lines) + "\n"


def _ladder(title: str, steps: Sequence[LadderStep]) -> list[str]:
    """A table of a ladder's items, and what must be said of it."""
    headers = ["rung", *(" ".join(header.split()) for header in LADDER_HEADERS)]
    rows = [[escape(cell) for cell in (rung_name(step), *step_cells(step))] for step in steps]
    notes = [f"- {escape(note)}" for note in ladder_notes(steps)]
    table = [_line(headers), _line(["---"] * len(headers)), *(_line(row) for row in rows)]
    return [f"### {escape(title)}", "", *table, "", *notes]


def _cells(row: ExperimentSummary, keys: Sequence[str], baseline: str) -> list[str]:
    """One row, in the order of the headers."""
    return [
        row.stack,
        *cells.sweep_values(row, keys),
        cells.tokens_per_second(row),
        cells.speed_up(row, baseline),
        cells.step_milliseconds(row),
        cells.peak_mebibytes(row),
        cells.last_loss(row),
        cells.loss_verdict(row, baseline),
        cells.verdict(row, baseline),
        row.status.value,
        row.differs,
    ]


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"

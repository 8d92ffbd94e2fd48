"""The report section `ladder`: the effect of adding each item, and of leaving each item out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from accel_bench.analysis.aggregate import ExperimentRuns
from accel_bench.analysis.schema import Summary
from accel_bench.analysis.statistics.verdict import ALIKE
from accel_bench.analysis.wording import point_name, ratio_interval, ratio_texts
from accel_bench.report.table import Column, Line, Table, columns_of, number_column, read_at
from accel_bench.report.views.training import verdict_column
from accel_bench_ladder.figures import LadderFigure, LadderStep, MemoryChange, ladder_steps

NAME = "ladder"
"""Entry-point name of the section."""

MEANING = (
    "adds, loss: against the rung before; left out: everything without the item against "
    "everything; estimates over rounds, no verdicts"
)
"""Note under the table of a ladder."""


def document(summary: Summary, rows: Sequence[ExperimentRuns]) -> tuple[LadderStep, ...] | None:
    """Return the effects of the ladder's items, or None if the plan has no ladder.

    The experiments of `summary` and those of `rows` are in the same order.
    """
    return ladder_steps(rows, [row.ratio for row in summary.experiments]) or None


def tables(summary: Summary, steps: Sequence[LadderStep]) -> list[Table]:
    """Return one table of the items' effects for each sweep point that has a ladder."""
    points: dict[str, list[LadderStep]] = {}
    for step in steps:
        at = f" ({point_name(step)})" if step.sweep else ""
        points.setdefault(f"ladder of {summary.scenario}{at}", []).append(step)
    fast = summary.experiments[0].words.times.removeprefix("times ")
    columns = [
        replace(column, title=fast) if column.title == "as fast" else column for column in COLUMNS
    ]
    return [Table(columns, own, title, _notes(own)) for title, own in points.items()]


def memory_change(change: MemoryChange) -> str:
    """Return a memory change in MiB as text, such as `-61.2 ±0.5`; without `±` if that is 0."""
    mean = change.bytes / 2**20
    digits = 0 if abs(mean) >= 100 else 1
    rounded = round(mean, digits)
    text = f"{rounded:+,.{digits}f}" if rounded else "0.0"
    half = 0.0 if change.high is None else round((change.high - change.bytes) / 2**20, digits)
    return f"{text} ±{half:,.{digits}f}" if half else text


def _notes(steps: Sequence[LadderStep]) -> list[str]:
    """Return the notes below a table: its columns, missing comparisons, and different losses."""
    return [MEANING, *dict.fromkeys(note for step in steps for note in _step_notes(step))]


def _step_notes(step: LadderStep) -> Iterator[str]:
    for name, figure in (("added", step.adds), ("left out", step.left_out)):
        if figure.verdict_reason:
            yield f"{step.item} {name}: {figure.verdict_reason}"
        elif figure.loss_verdict not in ALIKE:
            yield f"{step.item} {name}: loss {figure.loss_word}: {figure.loss_reason}"


COLUMNS = (
    Column("rung", lambda step: step.adds.stack or f"{step.number}+{step.item}", kind="name"),
    number_column("ratio", "as fast", "as base", lambda speed_up: ratio_texts(speed_up)[0]),
    number_column("adds.ratio", "adds", "times", ratio_interval),
    number_column("adds.memory", "adds", "MiB", memory_change),
    verdict_column("loss", lambda step: step.adds if step.adds.ratio else None),
    number_column("left_out.ratio", "left out", "times", ratio_interval),
    number_column("left_out.memory", "left out", "MiB", memory_change),
)
"""Columns of a ladder's printed table."""

OF_A_FIGURE = (
    "stack against rounds ratio verdict_reason memory loss_verdict loss_difference loss_tolerance "
    "loss_reason update_verdict update_difference"
)
"""Fields of a `LadderFigure` that the CSV has as columns."""


def _step_of(line: Line) -> LadderStep | None:
    """Return the ladder step of the item that a CSV row's stack adds; None if it adds no item."""
    steps = line.summary.sections.get(NAME, ())
    own = line.row.stack, line.row.sweep
    return next((step for step in steps if (step.adds.stack, step.sweep) == own), None)


CSV_COLUMNS = read_at(
    _step_of,
    *columns_of(LadderStep, "", "ladder_{}", "item"),
    *columns_of(LadderFigure, "adds", "ladder_adds_{}", OF_A_FIGURE),
    *columns_of(LadderFigure, "left_out", "ladder_left_out_{}", OF_A_FIGURE),
)
"""CSV columns of this section, which rows of the ladder's stacks fill."""

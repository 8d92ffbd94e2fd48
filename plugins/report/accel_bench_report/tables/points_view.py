"""Sweep points compared with one another, where `run` has swept something."""

from __future__ import annotations

from collections.abc import Sequence

from accel_bench.analysis.schema import Summary
from accel_bench.analysis.tables.points import PointFigure
from accel_bench.analysis.wording import (
    count,
    grouped_by_reason,
    label,
    point_name,
    rate_interval,
    ratio_interval,
    settings,
)
from accel_bench.report.table import Column, Table, in_units, number_column, reader
from accel_bench_report.tables.pivot_schema import Pivot
from accel_bench_report.tables.pivot_view import pivot_tables

RATES = ("tokens_per_hour", "samples_per_second", "steps_per_second", "mfu")
"""Figures of the second table."""

MEANING = "points: speed alone, as estimates with 95 % intervals and no verdicts"
"""Note under the rows: other values of a swept key may train another way."""


def point_tables(summary: Summary) -> list[Table]:
    """Return the table of the sweep points, where several were planned."""
    rows = summary.points
    if not rows:
        return []
    shown = COLUMNS if len({row.world_size for row in rows}) > 1 else COLUMNS[:-2]
    swept = settings(rows[0].reference)
    name = next((point_name(row) for row in rows if row.sweep == row.reference), swept)
    columns = in_units(shown, (row.counts for row in rows))
    return [Table(columns, rows, f"sweep points against {name}", [MEANING, *pairing(rows)])]


def point_figures(made: Pivot) -> list[Table]:
    """Return the table of rates that no other table of sweep points has."""
    figures = tuple(one for one in made.values if one.name in RATES)
    return pivot_tables(made.model_copy(update={"values": figures}), "figures of the sweep points")


def pairing(rows: Sequence[PointFigure]) -> list[str]:
    """Return which ratios are of pairs, and why others are missing."""
    notes = [(label(row), row.reason) for row in rows if row.reason and row.sweep != row.reference]
    for row in rows:
        if row.ratio is not None:
            pairs = f"paired within {count(row.rounds, 'round')}"
            alone = "unpaired: its runs and the reference's are of different times or nodes"
            notes.append((label(row), pairs if row.paired else alone))
    return grouped_by_reason(notes)


COLUMNS = (
    Column("stack", reader("stack"), kind="name"),
    Column("point", point_name, kind="name"),
    number_column("tokens_per_second", "speed", "tokens/s", rate_interval),
    number_column("ratio", "times as fast", "[95 % interval]", ratio_interval),
    number_column("world_size", "ranks"),
    number_column("ratio_per_device", "per device", "times as fast", ratio_interval),
)
"""Columns for people; the last two where points differ in their number of ranks."""

"""The report section `sweep`: scaling of stacks, and all sweep points in one table."""

from __future__ import annotations

from collections.abc import Sequence

from accel_bench.analysis.aggregate import ExperimentRuns
from accel_bench.analysis.schema import Summary
from accel_bench.analysis.wording import point_name, rate_interval, ratio_interval, settings
from accel_bench.documents.base import Frozen
from accel_bench.report.table import (
    Column,
    Line,
    Table,
    columns_of,
    in_units,
    number_column,
    read_at,
    reader,
)
from accel_bench_report.tables.pivot import Layout, pivot_experiments
from accel_bench_report.tables.pivot_schema import Pivot
from accel_bench_report.tables.pivot_view import pivot_tables
from accel_bench_report.tables.points import PointFigure, compare_points
from accel_bench_report.tables.scaling import Scaling, scalings
from accel_bench_report.tables.scaling_view import pairing, scaling_tables

NAME = "sweep"
"""Entry-point name of the section."""

RATES = ("tokens_per_hour", "samples_per_second", "steps_per_second", "mfu")
"""Figures in the table of rates."""

MEANING = "points: speed alone, as estimates with 95 % intervals and no verdicts"
"""Note under sweep points: points train differently, so their speeds get no verdict."""


class Sweep(Frozen):
    """Comparison of sweep points with one another."""

    points: tuple[PointFigure, ...] = ()
    """Ratios of each stack at each sweep point to the same stack at the reference point."""

    scaling: tuple[Scaling, ...] = ()
    """Scaling of each stack; empty if neither devices nor nodes are swept."""

    pivot: Pivot | None = None
    """Table of all sweep points with their figures; null if only seeds are swept."""


def document(summary: Summary, rows: Sequence[ExperimentRuns]) -> Sweep | None:
    """Return the comparison of sweep points; None if nothing is swept, or seeds alone."""
    scaling, points = scalings(rows), compare_points(rows, summary.reference)
    if not (points or scaling):
        return None
    sessions = {session for row in rows for session, _ in row.counted}
    beside = Layout(baselines=dict.fromkeys(sessions, summary.baseline))
    pivot = pivot_experiments(rows, beside) if points else None
    return Sweep(points=points, scaling=scaling, pivot=pivot)


def compared(summary: Summary, found: Sweep) -> str:
    """Return the name of what is compared: `sweep points`, or empty if no point has a ratio.

    `found` is the section's document.
    """
    return "sweep points" if any(point.ratio for point in found.points) else ""


def tables(summary: Summary, found: Sweep) -> list[Table]:
    """Return a table for each stack's scaling, or else tables of sweep points and of rates.

    `found` is the section's document.
    """
    if found.scaling:
        return scaling_tables(found.scaling)
    return [*point_tables(found.points), *(point_figures(found.pivot) if found.pivot else ())]


def point_tables(rows: Sequence[PointFigure]) -> list[Table]:
    """Return a list with the table of sweep points; it is empty without rows."""
    if not rows:
        return []
    shown = COLUMNS if len({row.world_size for row in rows}) > 1 else COLUMNS[:-2]
    swept = settings(rows[0].reference)
    name = next((point_name(row) for row in rows if row.sweep == row.reference), swept)
    columns = in_units(shown, (row.counts for row in rows))
    return [Table(columns, rows, f"sweep points against {name}", [MEANING, *pairing(rows)])]


def point_figures(made: Pivot) -> list[Table]:
    """Return the tables of the rates in `made`, such as MFU, at all sweep points."""
    figures = tuple(value for value in made.values if value.name in RATES)
    return pivot_tables(made.model_copy(update={"values": figures}), "figures of the sweep points")


def scaling_of(summary: Summary) -> tuple[Scaling, ...]:
    """Return the scaling of each stack of a summary."""
    section = summary.sections.get(NAME)
    return section.scaling if isinstance(section, Sweep) else ()


COLUMNS = (
    Column("stack", reader("stack"), kind="name"),
    Column("point", point_name, kind="name"),
    number_column("tokens_per_second", "speed", "tokens/s", rate_interval),
    number_column("ratio", "times as fast", "[95 % interval]", ratio_interval),
    number_column("world_size", "ranks"),
    number_column("ratio_per_device", "per device", "times as fast", ratio_interval),
)
"""Columns of the table of sweep points; the last two are shown if numbers of ranks differ."""

OF_POINT = "reference world_size paired rounds verdict_reason ratio ratio_per_device"
"""Fields of a sweep point in the CSV."""


def _point_of(line: Line) -> PointFigure | None:
    """Return the comparison of a CSV row's sweep point with the reference point, or None without
    one."""
    section = line.summary.sections.get(NAME)
    own = line.row.stack, line.row.sweep
    points = section.points if isinstance(section, Sweep) else ()
    return next((point for point in points if (point.stack, point.sweep) == own), None)


CSV_COLUMNS = read_at(_point_of, *columns_of(PointFigure, "", "point_{}", OF_POINT))
"""CSV columns of the section."""

"""The section of swept scenarios: how stacks scale, and all sweep points in one table."""

from __future__ import annotations

from collections.abc import Sequence

from accel_bench.analysis.aggregate import ExperimentRuns
from accel_bench.analysis.schema import Summary
from accel_bench.documents.base import Frozen
from accel_bench.report.table import Table
from accel_bench_report.tables.pivot import Layout, pivot_experiments
from accel_bench_report.tables.pivot_schema import Pivot
from accel_bench_report.tables.points_view import point_figures, point_tables
from accel_bench_report.tables.scaling import scalings
from accel_bench_report.tables.scaling_schema import Scaling
from accel_bench_report.tables.scaling_view import scaling_tables

NAME = "sweep"
"""Name of the entry point."""


class Sweep(Frozen):
    """Sweep points beside one another."""

    scaling: tuple[Scaling, ...] = ()
    """How each stack scales; empty where neither devices nor nodes are swept."""

    pivot: Pivot | None = None
    """All sweep points in one table, with the figures of each; null where nothing but seeds is
    swept."""


def document(summary: Summary, rows: Sequence[ExperimentRuns]) -> Sweep | None:
    """Return the section; None where nothing but seeds is swept."""
    scaling = scalings(rows)
    if not (summary.points or scaling):
        return None
    sessions = {session for row in rows for session, _ in row.counted}
    beside = Layout(baselines=dict.fromkeys(sessions, summary.baseline))
    pivot = pivot_experiments(rows, beside) if summary.points else None
    return Sweep(scaling=scaling, pivot=pivot)


def tables(summary: Summary, found: Sweep) -> list[Table]:
    """Return a table of each stack that scales; else one of sweep points, and one of rates."""
    if found.scaling:
        return scaling_tables(found.scaling)
    return [*point_tables(summary), *(point_figures(found.pivot) if found.pivot else ())]


def scaling_of(summary: Summary) -> tuple[Scaling, ...]:
    """Return how the stacks of a comparison scale."""
    found = summary.sections.get(NAME)
    return found.scaling if isinstance(found, Sweep) else ()

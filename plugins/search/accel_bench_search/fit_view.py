"""The largest value that fits, and every value that was tried: what `fit` prints."""

from __future__ import annotations

from accel_bench.analysis.wording import milliseconds, rate_interval, size
from accel_bench.report.table import (
    Column,
    Report,
    Section,
    Table,
    interval_paths,
    paths,
    reader,
)
from accel_bench_search.fitting import FitPoint, FitReport, tried


def fit_view(report: FitReport) -> Report:
    """Return the answer, then a row for each value, the smallest first."""
    rows = sorted(report.points, key=lambda one: one.value)
    section = Section(
        title=report.scenario,
        answer=report.answer,
        tables=[Table(_columns(report), rows)],
        notes=[tried(report), *report.notes, *map(_reason, (p for p in rows if p.reason))],
    )
    return Report([section], report, Table(FLAT, rows))


def _columns(report: FitReport) -> list[Column]:
    at_a_rate = any(one.offered_rate is not None for one in report.points)
    latency = Column("median request", reader("request_seconds.median"), unit="ms",
                     form=milliseconds, kind="number")  # fmt: skip
    return [
        Column(report.key, reader("value"), form="{:,}".format, kind="number"),
        Column("outcome", reader("outcome"), kind="word"),
        *([latency] if at_a_rate else []),
        Column("speed", reader("tokens_per_second"), "", "tokens/s", rate_interval, "number"),
        Column("memory", reader("peak_memory_bytes"), "", "peak", size, "number"),
        Column("run", _source, kind="name", rank=1),
    ]


def _source(point: FitPoint) -> str:
    if not point.run_id:
        return "not run"
    return f"{point.run_id} (stored already)" if point.stored else point.run_id


def _reason(point: FitPoint) -> str:
    return f"{point.value:,} {point.outcome}: {point.reason}"


FLAT = (
    *paths("", "value outcome status reason run_id stored"),
    *interval_paths("tokens_per_second", "tokens_per_second"),
    *paths("", "offered_rate saturated"),
    *interval_paths("request_seconds", "request_seconds"),
    *paths("", "peak_memory_bytes seconds"),
)
"""Columns of the CSV."""

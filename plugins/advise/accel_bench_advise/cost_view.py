"""View of `results cost`: stored throughput in dollars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.wording import grouped_by_reason, label, rate, usd
from accel_bench.report.table import (
    Column,
    Report,
    Section,
    Table,
    in_units,
    number_column,
    paths,
    reader,
)
from accel_bench_advise.cost_document import FACTORS, CostDocument, ExperimentCost


def cost_report(document: CostDocument) -> Report:
    """Return a row for each experiment, then the price, what is left out, what to beware of."""
    columns = [c for c in COLUMNS if document.for_tokens or c.key != "usd_for_tokens"]
    columns = in_units(columns, (row.counts for row in document.experiments))
    section = Section(tables=[Table(columns, document.experiments)], notes=list(_notes(document)))
    rows = [FlatCost(document, row) for row in document.experiments]
    return Report([section], document, Table(FLAT if rows else (), rows))


class FlatCost(NamedTuple):
    """Sources of one line of the CSV."""

    document: CostDocument
    row: ExperimentCost


def _sensitivity(what: str, factor: float, path: str = "sensitivity") -> Callable[[Any], Any]:
    """Return a reader of the cost if throughput or price were off by a factor."""
    sensitivity = reader(path)
    return lambda row: {s.factor: getattr(s, what) for s in sensitivity(row)}.get(factor)


def _interval(form: Callable[[float], str]) -> Callable[[Interval], str]:
    """Return a form that writes `0.402 (0.398 to 0.405)`."""

    def text(interval: Interval) -> str:
        ends = [form(end) for end in (interval.low, interval.high) if end is not None]
        return f"{form(interval.median)} ({' to '.join(ends)})" if ends else form(interval.median)

    return text


def _notes(document: CostDocument) -> Iterator[str]:
    yield document.tariff.note
    if document.for_tokens:
        yield f"USD in all: for {document.for_tokens:,.0f} tokens"
    yield f"tokens are real ones, without padding; it is {document.excluded}"
    yield from grouped_by_reason(
        [(label(row), note) for row in document.experiments for note in row.notes]
    )


def _flat_interval(name: str) -> list[Column]:
    """Return the CSV's columns for an interval; its median bears the name alone."""
    path = f"row.{name}"
    return [Column(name, reader(f"{path}.median")), *paths(path, "low high", f"{name}_{{}}")]


COLUMNS = (
    Column("stack", label, kind="name"),
    Column("experiment_id", reader("experiment_id"), "experiment", kind="word", rank=2),
    Column("status", reader("status"), kind="word"),
    number_column("runs", "runs", "", str, rank=3),
    number_column("tokens_per_second", "speed", "tokens/s", _interval(rate)),
    number_column("instances", "machines", "", str, rank=1),
    number_column("usd_per_hour", "price", "USD/hour", lambda price: f"{price:,.4g}", rank=1),
    number_column("usd_per_million_tokens", "cost", "USD/1M tokens", _interval(usd)),
    *(
        Column(f"{what} x{factor:g}", _sensitivity(what, factor), "", "USD/1M tokens",
               usd, "number", rank=4)
        for what in ("throughput", "price")
        for factor in FACTORS
        if factor != 1
    ),
    number_column("usd_for_tokens", "in all", "USD", _interval(usd)),
)  # fmt: skip
"""Columns for people; the last where tokens are given."""

FLAT = (
    *paths("row", "experiment_id scenario stack sweep tag status runs device devices_used"),
    *paths("row", "instances usd_per_hour"),
    *_flat_interval("tokens_per_second"),
    *_flat_interval("usd_per_million_tokens"),
    *_flat_interval("usd_for_tokens"),
    *(
        Column(
            f"usd_per_million_tokens_{what}_x{factor:g}",
            _sensitivity(what, factor, "row.sensitivity"),
        )
        for what in ("throughput", "price")
        for factor in FACTORS
    ),
    *paths("row", "notes"),
    *paths("document.tariff", "kind instance provider region date stale source", "tariff_{}"),
    *paths("document", "for_tokens"),
)
"""Columns of the CSV."""

"""Tables of `estimate`: memory, speed and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, get_args

from accel_bench.analysis.wording import (
    grouped_by_reason,
    label,
    percent,
    rate,
    significant,
    size,
    usd,
)
from accel_bench.report.table import (
    Column,
    Report,
    Section,
    Table,
    columns_of,
    number_column,
    reader,
)
from accel_bench_advise.estimates.schema import (
    FITS,
    BatchShape,
    Bounds,
    CostEstimate,
    Estimate,
    EstimateDocument,
    LengthSummary,
    Limit,
    MemoryEstimate,
    Part,
    SpeedEstimate,
)

METHOD = (
    "estimated, not measured: the step was simulated on tensors without content; spans hold what a "
    "simulation does not see (the device's context, workspaces, gaps, the efficiency of kernels)"
)
"""Note under each table of estimates."""


def estimate_report(document: EstimateDocument) -> Report:
    """Return the report of `estimate`: tables of memory, speed and cost, conclusions and notes."""
    rows = document.estimates
    known = [row for row in rows if not row.problem]
    tables = [Table(_memory_columns(known), known, title="memory of one device at its peak")]
    tables.append(Table(_speed_columns(known), known, title="limits, speed and money"))
    section = Section(
        title="ESTIMATED",
        headline=" ".join(row.answer for row in known),
        tables=tables if known else [],
        notes=list(_notes(document)),
    )
    return Report([section], document, Table(FLAT, rows))


def span_text(form: Callable[[float], str]) -> Callable[[Bounds], str]:
    """Return a function that turns a span into text; `form` turns each end into text."""
    return lambda span: span.text(form)


def _limit(limit: Limit) -> str:
    if not limit.value:
        return "none fits"
    return (
        f"{limit.value:,}"
        + {"memory": "", "model": " (model's end)", "search": " or more"}[limit.bounded_by]
    )


def _part(part: str) -> Callable[[Any], Any]:
    return lambda row: row.memory.parts.get(part)


def _memory_columns(rows: list[Estimate]) -> list[Column]:
    """Return the columns of memory: each use that occurs, their sum, and all bytes needed."""
    used = [part for part in get_args(Part) if any(_part(part)(row) for row in rows)]
    return [
        NAME,
        *(
            Column(part, _part(part), form=size, kind="number", rank=rank)
            for rank, part in enumerate(used, start=1)
        ),
        number_column("memory.tensor_bytes", "tensors", "", size),
        number_column("memory.needed_bytes", "needed", "", span_text(size)),
        Column("fit", reader("memory.fit"), form=FITS.__getitem__, kind="word"),
    ]


def _notes(document: EstimateDocument) -> Iterator[str]:
    if document.lengths:
        yield _of_lengths(document.lengths)
    yield METHOD
    rows = document.estimates
    about = [(label(row), row) for row in rows]
    reasons = [(name, f"no estimate: {row.problem}") for name, row in about if row.problem]
    reasons += [(name, f"speed: {row.speed.basis}") for name, row in about if row.speed]
    reasons += [
        (name, f"time and money are for {row.for_tokens:,.0f} {row.counts}, padding included")
        for name, row in about
        if row.for_tokens and row.speed
    ]
    yield from grouped_by_reason(reasons)
    if prices := dict.fromkeys(row.cost.price for row in rows if row.cost):
        yield f"price: {'; '.join(prices)}"
    yield from grouped_by_reason([(name, note) for name, row in about for note in row.notes])


def _of_lengths(found: LengthSummary) -> str:
    return (
        f"lengths: {found.samples:,} samples, median {found.median:,}, 95 % of them up to "
        f"{found.percentile_95:,} tokens, longest {found.longest:,}; data.sequence_length "
        f"{found.sequence_length:,} cuts {percent(found.truncated_fraction)} of the samples, and "
        f"padding to it is {percent(found.padding_fraction)} of the tokens, unless they are packed"
    )


NAME = Column("stack", label, kind="name")


def _speed_columns(rows: list[Estimate]) -> list[Column]:
    """Return the columns of speed and cost, in the unit that the task counts."""
    counted = " or ".join(dict.fromkeys(row.counts for row in rows))
    return [
        NAME,
        number_column("gpu", "device", "", str),
        number_column("largest_micro_batch_size", "largest batch", "samples", _limit),
        number_column("longest_sequence_length", "longest context", "tokens", _limit),
        number_column("speed.tokens_per_second", "speed", f"{counted}/s", span_text(rate)),
        number_column("hours", "time", "hours", span_text(lambda hours: significant(hours, 3)), 1),
        number_column(
            "cost.usd_per_million_tokens", "cost", f"USD/1M {counted}", span_text(usd), 2
        ),
        number_column("cost.usd", "in all", "USD", span_text(usd)),
    ]


LIMITS = ("largest_micro_batch_size", "longest_sequence_length")
NAMED_BELOW = f"shape memory speed cost {' '.join(LIMITS)}"
"""Fields of an estimate that get columns of their own further below in `FLAT`."""

FLAT = (
    *columns_of(Estimate, without=f"{NAMED_BELOW} nearest answer notes"),
    *columns_of(BatchShape, "shape"),
    *columns_of(MemoryEstimate, "memory", without="parts phase"),
    *columns_of(SpeedEstimate, "speed", names="tokens_per_second"),
    *columns_of(CostEstimate, "cost", names="usd_per_million_tokens usd"),
    *(Column(key, reader(f"{key}.value")) for key in LIMITS),
)
"""CSV columns of `estimate`."""

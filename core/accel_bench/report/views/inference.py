"""Columns of stacks that answer requests: latencies, and agreement with the baseline's answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from accel_bench.analysis.metrics.offered_load import MEDIAN_LATENCY
from accel_bench.analysis.schema import ExperimentSummary, Summary
from accel_bench.analysis.wording import label, rate, size
from accel_bench.report.table import Column, Line, Table, number_column, reader
from accel_bench.report.views.training import verdict_column

NEW_TOKENS = "new tokens/s"
"""Unit of the speed: generated tokens, in the time of prompts and answers."""

PERCENTILES = (50, 90, 99)
"""Percentiles of every latency."""

FIRST_TOKEN = ("time_to_first_token_p50", "time_to_first_token_p99")
BETWEEN_TOKENS = ("inter_token_latency_p50", "inter_token_latency_p99")
"""Metrics of the columns about time between tokens."""


LATENCIES = {
    "time_to_first_token": "first token",
    "inter_token_latency": "between tokens",
    "request_latency": "whole answer",
    "queueing": "in the queue",
}
"""Latencies by the names of their metrics."""

RATES = (
    ("prefill_tokens_per_second", "prefill", "tokens/s", rate),
    ("decode_tokens_per_second", "decode", "tokens/s", rate),
    ("requests_per_second", "requests", "requests/s", rate),
    ("busy", "at work", "of the time", "{:.0%}".format),
    ("kv_cache_bytes", "cache", "keys and values", size),
    ("whole_answers", "whole", "of the answers", "{:.0%}".format),
    ("measured_requests", "measured", "requests", "{:,.0f}".format),
    ("measured_inter_token_latencies", "gaps", "between tokens", "{:,.0f}".format),
)
"""Further metrics of an engine that answers requests: name, title, unit and form."""

SHOWN = {f"{name}_p{percent}" for name in LATENCIES for percent in PERCENTILES} | {
    name for name, *_ in RATES
}
"""Metrics with a table of their own."""


def generates(summary: Summary) -> bool:
    """Return whether a scenario measures answers to requests."""
    return any(row.mode == "inference" for row in summary.experiments)


def inference_columns(compared: Callable[[Any], Any]) -> list[Column]:
    """Return the columns that replace those of losses and updates.

    `compared` returns a row that is compared with the baseline, else null.
    """
    return [
        _latency("first token", FIRST_TOKEN),
        replace(_latency("token gap", BETWEEN_TOKENS), rank=1),
        verdict_column("output", compared),
    ]


def load_notes(summary: Summary) -> list[str]:
    """Return notes on the load of requests that arrive at a rate; empty without a rate."""
    if all(row.offered_rate is None for row in summary.experiments):
        return []
    speed = "the speed is that of the busy time"
    if all(row.quantity.name != MEDIAN_LATENCY for row in summary.experiments):
        return [f"at inference.rate: {speed}"]
    return [
        "at inference.rate: times as fast is by the latency of the median request, from its "
        f"arrival to its last token; {speed}"
    ]


def request_tables(summary: Summary) -> list[Table]:
    """Return the tables of latencies and of rates; empty if nothing was generated."""
    rows = [row for row in summary.experiments if _known(row).keys() & SHOWN]
    if not rows:
        return []
    latencies = [
        Line(latency=title, stack=label(row), **values)
        for name, title in LATENCIES.items()
        for row in rows
        if any((values := {f"p{n}": _known(row).get(f"{name}_p{n}") for n in PERCENTILES}).values())
    ]
    measured = {name for row in rows for name in _known(row)}
    rates = [
        Column(title, partial(_metric, name), unit=unit, form=form, kind="number")
        for name, title, unit, form in RATES
        if name in measured
    ]
    stack = Column("stack", label, kind="name")
    return [Table(LATENCY_COLUMNS, latencies), Table([stack, *rates], rows)]


LATENCY_COLUMNS = (
    Column("latency", reader("latency")),
    Column("stack", reader("stack"), kind="name"),
    *(number_column(f"p{percent}", "", "ms", rate) for percent in PERCENTILES),
)
"""Columns of latencies."""


def _known(row: ExperimentSummary) -> dict[str, float]:
    return {one.name: one.value for one in row.metrics if one.value is not None}


def _metric(name: str, row: ExperimentSummary) -> float | None:
    return _known(row).get(name)


def _latency(title: str, names: Sequence[str]) -> Column:
    return Column(
        title,
        partial(_metrics, names),
        unit="ms p50/p99",
        form=lambda values: "/".join(rate(one) for one in values),
        kind="number",
    )


def _metrics(names: Sequence[str], row: ExperimentSummary) -> list[float] | None:
    """Return metrics of the row by name; None if one is missing."""
    known = _known(row)
    found = [known[name] for name in names if name in known]
    return found if len(found) == len(names) else None

"""The report section `requests` of inference stacks: request latencies and token rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from accel_bench.analysis.aggregate import ExperimentRuns
from accel_bench.analysis.schema import ExperimentSummary, StackRow, Summary
from accel_bench.analysis.wording import label, rate, size
from accel_bench.report.table import Column, Table

NAME = "requests"
"""Entry-point name of the section."""

PERCENTILES = (50, 90, 99)
"""Percentiles shown of each latency."""

FIRST_TOKEN = ("time_to_first_token_p50", "time_to_first_token_p99")
BETWEEN_TOKENS = ("inter_token_latency_p50", "inter_token_latency_p99")
"""Metrics of the median and 99th percentile of time between tokens."""


LATENCIES = {
    "time_to_first_token": "first token",
    "inter_token_latency": "between tokens",
    "request_latency": "whole answer",
    "queueing": "in the queue",
}
"""Titles of latencies by metric name."""

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
"""Further metrics of inference engines: name, title, unit and format."""

SHOWN_METRICS = {f"{name}_p{percent}" for name in LATENCIES for percent in PERCENTILES} | {
    name for name, *_ in RATES
}
"""Metrics that the tables of the section show."""


class RequestLatency(StackRow):
    """Percentiles of a latency of a stack's requests, in milliseconds."""

    latency: str
    """Name of the metric without its percentile."""

    p50: float | None
    p90: float | None
    p99: float | None


def document(summary: Summary, rows: Sequence[ExperimentRuns]) -> list[RequestLatency] | None:
    """Return the latency percentiles of each inference stack; None if no stack runs inference."""
    if all(row.mode != "inference" for row in summary.experiments):
        return None
    latencies = [
        RequestLatency(
            **row.model_dump(include={*StackRow.model_fields}),
            latency=name,
            p50=_metric(f"{name}_p50", row),
            p90=_metric(f"{name}_p90", row),
            p99=_metric(f"{name}_p99", row),
        )
        for name in LATENCIES
        for row in summary.experiments
    ]
    return [latency for latency in latencies if any((latency.p50, latency.p90, latency.p99))]


def tables(summary: Summary, latencies: Sequence[RequestLatency]) -> list[Table]:
    """Return the table of latencies and rates; an empty list if no stack measured any.

    It shows metrics of the summary; `latencies` is the section's document.
    """
    rows = [row for row in summary.experiments if _known(row).keys() & SHOWN_METRICS]
    if not rows:
        return []
    measured = {name for row in rows for name in _known(row)}
    percentiles = [
        replace(
            _latency(title, [f"{name}_p{percent}" for percent in PERCENTILES]),
            unit="ms p50/p90/p99",
        )
        for name, title in LATENCIES.items()
        if {f"{name}_p{percent}" for percent in PERCENTILES} <= measured
    ]
    # Where there is no room the last rates are left out first.
    rates = [
        Column(title, partial(_metric, name), unit=unit, form=form, kind="number", rank=number)
        for number, (name, title, unit, form) in enumerate(RATES, 1)
        if name in measured
    ]
    return [Table([Column("stack", label, kind="name"), *percentiles, *rates], rows)]


def _known(row: ExperimentSummary) -> dict[str, float]:
    return {metric.name: metric.value for metric in row.metrics if metric.value is not None}


def _metric(name: str, row: ExperimentSummary) -> float | None:
    return _known(row).get(name)


def _latency(title: str, names: Sequence[str]) -> Column:
    return Column(
        title,
        partial(_metrics, names),
        unit="ms p50/p99",
        form=lambda values: "/".join(rate(value) for value in values),
        kind="number",
    )


def _metrics(names: Sequence[str], row: ExperimentSummary) -> list[float] | None:
    """Return the row's metrics of these names; None if one is missing."""
    known = _known(row)
    values = [known[name] for name in names if name in known]
    return values if len(values) == len(names) else None


STACK_COLUMNS = (
    _latency("first token", FIRST_TOKEN),
    replace(_latency("token gap", BETWEEN_TOKENS), rank=1),
)
"""Columns that the section adds to the table of stacks."""

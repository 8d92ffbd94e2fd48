"""Offered load: requests that arrive at a rate, their latency, saturation and comparability.

At a rate a slower server finds more requests waiting and answers larger batches, so that tokens per
busy second do not describe it. The compared figure is the median latency, from a request's arrival
to its last token; if requests pile up, latency grows with the duration, and nothing is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from accel_bench.analysis.metrics.throughput import RunThroughput
from accel_bench.analysis.wording import join_names
from accel_bench.result import Result
from accel_bench.scenario.models import Scenario

MEDIAN_LATENCY, TAIL_LATENCY = "request_latency_p50", "request_latency_p99"
"""Metrics of an inference engine in milliseconds: the median latency, which is compared at a rate,
and the tail latency."""


NO_LATENCY = "latencies of requests were not measured"
"""Reason why nothing is compared at a rate."""

OTHER_LOAD = "one of the two answers requests at a rate, the other one as many as it can"
"""Reason why a latency and a speed are not compared."""


class OfferedLoad(NamedTuple):
    """Rate at which requests arrive in a stack's runs, and whether they arrive too fast."""

    name: str
    """Name of the runs in messages."""

    rate: float | None
    """Requests that arrive per second; None without a rate."""

    saturated: bool
    """True if requests arrived faster than a run answered them."""


def offered_load(name: str, runs: Iterable[Result]) -> OfferedLoad:
    """Return rate and saturation of the completed runs of a scenario; `name` is for messages."""
    known = [run for run in runs if run.status.completed]
    return OfferedLoad(
        name=name,
        rate=offered_rate(known[-1].experiment.scenario) if known else None,
        saturated=any(map(is_saturated, known)),
    )


def offered_rate(scenario: Scenario) -> float | None:
    """Return the requests that arrive per second; None if each batch follows the previous one, and
    for training."""
    return scenario.inference.rate if scenario.generates else None


def is_saturated(run: Result) -> bool:
    """Return whether requests arrived faster than a rank answered them, as its evidence states."""
    shown = (evidence for rank in run.ranks for evidence in rank.evidence.values())
    loads = (evidence.get("load") for evidence in shown if isinstance(evidence, Mapping))
    return any(isinstance(load, Mapping) and load.get("saturated") is True for load in loads)


def engine_of(run: Result) -> str:
    """Return the name of the plugin that drove the steps: the scenario's engine, or the only plugin
    that reports request latencies, if the engine reports none."""
    measured = (metric for rank in run.ranks for metric in rank.metrics)
    reporting = {metric.plugin for metric in measured if metric.name == MEDIAN_LATENCY}
    named = run.experiment.scenario.engine.use
    return reporting.pop() if named not in reporting and len(reporting) == 1 else named


def largest_metric(run: Result, name: str) -> float | None:
    """Return the largest value over ranks of an engine metric; None if a rank lacks it."""
    engine = engine_of(run)
    values = [
        metric.value
        for rank in run.ranks
        for metric in rank.metrics
        if metric.name == name and metric.plugin == engine and metric.value is not None
    ]
    return max(values) if values and len(values) == len(run.ranks) else None


def compared_seconds(run: Result, speed: RunThroughput) -> float | None:
    """Return the seconds per real token of a run or, for requests that arrive at a rate, the median
    latency; None if unmeasured."""
    if offered_rate(run.experiment.scenario) is None:
        return speed.seconds_per_token
    latency = largest_metric(run, MEDIAN_LATENCY)
    return latency / 1000 if latency else None


def rate_obstacle(base: OfferedLoad, row: OfferedLoad, any_rate: bool = False) -> str:
    """Return the reason why requests do not arrive at equal rates, or an empty text. `any_rate`
    accepts different rates, but not a rate against no rate."""
    if (base.rate is None) is not (row.rate is None):
        return OTHER_LOAD
    if base.rate == row.rate or any_rate:
        return ""
    return f"requests arrive at {base.rate:g} and at {row.rate:g} a second"


def load_obstacle(base: OfferedLoad, row: OfferedLoad, any_rate: bool = False) -> str:
    """Return the reason why two loads cannot be compared by latency, or an empty text. `any_rate`
    accepts different rates, as sweep points may have."""
    if reason := rate_obstacle(base, row, any_rate):
        return reason
    if base.rate is None:
        return ""
    full = [load for load in (base, row) if load.saturated]
    return saturation(*full) if full else ""


def saturation(*loads: OfferedLoad) -> str:
    """Return a sentence on the saturated loads, and on what this means for their latencies."""
    names = join_names([f"{load.name} at {load.rate:g} requests/s" for load in loads])
    return f"saturated: {names}; requests pile up, so that latencies say how long was measured"

"""Requests that arrive at a rate: what is compared of them, and whether a server kept up and two
may be compared.

At a rate a slower server finds more requests waiting and answers larger batches, so that tokens per
busy second tell nothing about it. Compared is how long the median request took, from its arrival to
its last token; where requests pile up, that says how long was measured, and nothing is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from accel_bench.analysis.metrics.throughput import RunThroughput
from accel_bench.analysis.statistics.verdict import Comparison
from accel_bench.analysis.wording import join_names
from accel_bench.result import Result
from accel_bench.scenario.models import Scenario

MEDIAN_LATENCY, TAIL_LATENCY = "request_latency_p50", "request_latency_p99"
"""Metrics of an engine that answers requests, in milliseconds: what is compared at a rate, and the
latency of the slowest requests."""


NO_LATENCY = "latencies of requests were not measured"
"""Why nothing is compared at a rate."""

OTHER_LOAD = "one of the two answers requests at a rate, the other one as many as it can"
"""Why a latency and a speed are not compared."""


class OfferedLoad(NamedTuple):
    """What decides whether latencies of the runs of a stack may be compared."""

    name: str
    """What the runs are called."""

    rate: float | None
    """Requests that arrive per second; None where they arrive at no rate."""

    saturated: bool
    """True if requests piled up in a run."""

    has_latency: bool
    """True if the latency of the median request was measured."""


def offered_load(name: str, runs: Iterable[Result]) -> OfferedLoad:
    """Return the load of completed runs of one scenario; `name` is what they are called."""
    known = [run for run in runs if run.status.completed]
    return OfferedLoad(
        name=name,
        rate=offered_rate(known[-1].experiment.scenario) if known else None,
        saturated=any(map(is_saturated, known)),
        has_latency=any(largest_metric(run, MEDIAN_LATENCY) for run in known),
    )


def offered_rate(scenario: Scenario) -> float | None:
    """Return the requests that arrive per second; None where the next are asked for when the last
    are answered, and where the model is trained."""
    return scenario.inference.rate if scenario.generates else None


def is_saturated(run: Result) -> bool:
    """Return whether requests piled up on a rank, as its engine says by `load` in its evidence."""
    shown = (one for rank in run.ranks for one in rank.evidence.values())
    loads = (one.get("load") for one in shown if isinstance(one, Mapping))
    return any(isinstance(load, Mapping) and load.get("saturated") is True for load in loads)


def engine_of(run: Result) -> str:
    """Return the plugin that drove the steps: where the scenario's engine reports no latencies of
    requests and one other plugin does, a stack has brought it in the engine's place."""
    measured = (one for rank in run.ranks for one in rank.metrics)
    reporting = {one.plugin for one in measured if one.name == MEDIAN_LATENCY}
    named = run.experiment.scenario.engine.use
    return reporting.pop() if named not in reporting and len(reporting) == 1 else named


def largest_metric(run: Result, name: str) -> float | None:
    """Return the largest value over ranks of a metric of the engine; None where a rank lacks it."""
    engine = engine_of(run)
    found = [
        one.value
        for rank in run.ranks
        for one in rank.metrics
        if one.name == name and one.plugin == engine and one.value is not None
    ]
    return max(found) if found and len(found) == len(run.ranks) else None


def compared_seconds(run: Result, speed: RunThroughput) -> float | None:
    """Return the seconds per real token of a run or, where requests arrive at a rate, the latency
    of the median request; None where that was not measured."""
    if offered_rate(run.experiment.scenario) is None:
        return speed.seconds_per_token
    latency = largest_metric(run, MEDIAN_LATENCY)
    return latency / 1000 if latency else None


def rate_obstacle(base: OfferedLoad, row: OfferedLoad, any_rate: bool = False) -> str:
    """Return that requests do not arrive at one rate; empty where they do.

    `any_rate` takes two rates as one, but not a rate and none.
    """
    if (base.rate is None) is not (row.rate is None):
        return OTHER_LOAD
    if base.rate == row.rate or any_rate:
        return ""
    return f"requests arrive at {base.rate:g} and at {row.rate:g} a second"


def load_obstacle(base: OfferedLoad, row: OfferedLoad, any_rate: bool = False) -> str:
    """Return why two are not compared in how soon they answer; empty where they may be.

    `any_rate` is for sweep points, which may differ in the rate.
    """
    if reason := rate_obstacle(base, row, any_rate):
        return reason
    if base.rate is None:
        return ""
    if full := [one for one in (base, row) if one.saturated]:
        return saturation(*full)
    return "" if base.has_latency and row.has_latency else NO_LATENCY


def newly_saturated(base: OfferedLoad, row: OfferedLoad) -> bool:
    """Return whether requests pile up in `row` alone, though they arrive at the same rate."""
    same = row.rate is not None and row.rate == base.rate
    return same and row.saturated and not base.saturated


def saturation(*loads: OfferedLoad) -> str:
    """Return that requests pile up, and what of that follows."""
    names = join_names([f"{one.name} at {one.rate:g} requests/s" for one in loads])
    return f"saturated: {names}; requests pile up, so that latencies say how long was measured"


def of_offered_load(speed: Comparison, base: OfferedLoad, row: OfferedLoad) -> Comparison:
    """Return the comparison, without ratio and verdict where the load allows none."""
    reason = load_obstacle(base, row)
    if not reason:
        return speed
    return Comparison(rounds=speed.rounds, looks=speed.looks, verdict_reason=reason)

"""Decide whether the latencies of two experiments are comparable."""

from __future__ import annotations

from accel_bench.analysis.metrics.offered_load import OfferedLoad
from accel_bench.analysis.statistics.verdict import Comparison
from accel_bench.analysis.wording import join_names

NO_LATENCY = "latencies of requests were not measured"
"""Why nothing is compared at a rate."""

OTHER_LOAD = "one of the two answers requests at a rate, the other one as many as it can"
"""Why a latency and a speed are not compared."""


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

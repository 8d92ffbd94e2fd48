"""What training costs on the cheapest machines of the price table that have a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date

from accel_bench.analysis.metrics.cost import (
    HourlyRate,
    instances_needed,
    table_tariff,
    usd_per_million_tokens,
)
from accel_bench.analysis.wording import count
from accel_bench.catalog.hardware import NamedHardware
from accel_bench.catalog.prices import Price, PriceEntry
from accel_bench.scenario.models import Scenario
from accel_bench_advise.estimates.schema import CostEstimate, Span, SpeedEstimate


def estimate_cost(
    scenario: Scenario,
    speed: SpeedEstimate | None,
    hardware: NamedHardware | None,
    prices: Sequence[PriceEntry],
    for_tokens: float | None,
) -> CostEstimate | None:
    """Return the cost on the cheapest machines; None where no price or no speed is known.

    `for_tokens` are counted as the speed's are: with padding.
    """
    found = cheapest_rate(scenario, hardware, prices) if speed else None
    if speed is None or found is None:
        return None
    machines, rate = found
    a_million = Span(
        low=usd_per_million_tokens(rate.usd_per_hour, machines, speed.tokens_per_second.high),
        high=usd_per_million_tokens(rate.usd_per_hour, machines, speed.tokens_per_second.low),
    )
    return CostEstimate(
        usd_per_hour=rate.usd_per_hour * machines,
        price=price_words(machines, rate),
        usd_per_million_tokens=a_million,
        usd=a_million.times(for_tokens / 1e6) if for_tokens else None,
    )


def cheapest_rate(
    scenario: Scenario, hardware: NamedHardware | None, prices: Sequence[PriceEntry]
) -> tuple[int, HourlyRate] | None:
    """Return how many of the cheapest machines are needed, and their price; None without any."""
    rates = list(_rates(scenario, hardware, prices)) if hardware else []
    return min(rates, key=lambda found: found[0] * found[1].usd_per_hour, default=None)


def price_words(machines: int, rate: HourlyRate) -> str:
    """Return `2 x aws p4d.24xlarge, on demand, 2026-11-01`."""
    stale = f", {count(rate.age_days or 0, 'day')} old" if rate.stale else ""
    many = f"{machines} x " if machines > 1 else ""
    return f"{many}{rate.provider} {rate.instance}, on demand, {rate.date}{stale}"


def _rates(
    scenario: Scenario, hardware: NamedHardware, prices: Sequence[PriceEntry]
) -> Iterator[tuple[int, HourlyRate]]:
    """Yield machines needed and their price, for each price of such a device."""
    for entry in prices:
        price = entry.price
        if is_price_of(price, hardware) and (rate := table_tariff(price, date.today())):
            nodes = scenario.resources.nodes
            yield instances_needed(scenario.world_size, nodes, price.devices), rate


def is_price_of(price: Price, hardware: NamedHardware) -> bool:
    """Return whether a price is that of machines with this device."""
    return price.device == hardware.name or hardware.hardware.is_called(price.device)

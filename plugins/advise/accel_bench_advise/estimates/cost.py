"""What training costs on the cheapest machines of the price table that have a device."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from accel_bench.analysis.metrics.cost import instances_needed
from accel_bench.analysis.wording import count
from accel_bench.catalog.hardware import NamedHardware
from accel_bench.catalog.prices import Price, PriceEntry
from accel_bench.scenario.models import Scenario
from accel_bench_advise.estimates.schema import CostEstimate, SpeedEstimate


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
    found = hourly_cost(scenario, hardware, prices)
    if speed is None or found is None:
        return None
    usd_per_hour, price = found
    a_million = speed.tokens_per_second.inverted(usd_per_hour * 1e6 / 3600)
    return CostEstimate(
        usd_per_hour=usd_per_hour,
        price=price,
        usd_per_million_tokens=a_million,
        usd=a_million.times(for_tokens / 1e6) if for_tokens else None,
    )


def hourly_cost(
    scenario: Scenario, hardware: NamedHardware | None, prices: Sequence[PriceEntry]
) -> tuple[float, str] | None:
    """Return the dollars for an hour of the cheapest machines, and whose price that is.

    Whose is as in `2 x aws p4d.24xlarge, on demand, 2026-11-01`. None where no price is known.
    """
    found, today = [], date.today()
    for price, _ in prices:
        if hardware and is_price_of(price, hardware):
            nodes = scenario.resources.nodes
            machines = instances_needed(scenario.world_size, nodes, price.devices)
            old = f", {count(price.age_days(today), 'day')} old" if price.is_stale(today) else ""
            many = f"{machines} x " if machines > 1 else ""
            whose = f"{many}{price.provider} {price.instance}, on demand, {price.date}{old}"
            found.append((machines * price.usd_per_hour, whose))
    return min(found, default=None)


def is_price_of(price: Price, hardware: NamedHardware) -> bool:
    """Return whether a price is that of machines with this device."""
    return price.device == hardware.name or hardware.hardware.is_called(price.device)

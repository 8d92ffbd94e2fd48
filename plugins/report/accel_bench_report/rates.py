"""The price of an hour that options name, as another program reads it."""

from __future__ import annotations

from accel_bench.analysis.metrics.cost import HourlyRate
from accel_bench.cli.options import PriceOptions
from accel_bench.plugins.doors import find_entries, find_entry

RATES, KIND, HOURLY = "accel_bench.rates", "rate", "hourly"
"""Group of the functions from options to prices, its kind, and the entry for hours."""


def hourly_rate(options: PriceOptions) -> HourlyRate | None:
    """Return the price that options name; None if they name none.

    Raises PriceError for a wrong one, and PluginError where nothing installed reads prices.
    """
    machine = (options.instance, options.provider, options.region, options.spot)
    if not any((options.price, *machine)) and HOURLY not in find_entries(RATES, KIND):
        return None
    entry = find_entry(RATES, KIND, HOURLY)
    read = entry.load()
    with entry.blamed():
        rate: HourlyRate | None = read(options)
    return rate

"""Hourly prices of machines, as options name them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel_bench.cli.options import PriceOptions
from accel_bench.cli.output import print_aside

if TYPE_CHECKING:
    from accel_bench.analysis.metrics.cost import HourlyRate


def warn_if_stale(rate: HourlyRate | None) -> None:
    """Print the source of newer prices, if a price is old."""
    from accel_bench.analysis.wording import count

    if rate is not None and rate.stale:
        print_aside(
            f"warning: the price is {count(rate.age_days or 0, 'day')} old ({rate.date}); "
            "`accel-bench catalog prices import` brings newer ones, --price gives one"
        )


def hourly_rate(options: PriceOptions) -> HourlyRate | None:
    """Return the price named by the options; None without one. Raises PriceError."""
    from datetime import date

    from accel_bench.analysis.metrics.cost import HourlyRate, table_tariff
    from accel_bench.catalog.prices import find_price, read_prices
    from accel_bench.errors import PriceError

    for option, value in (("--price", options.price), ("--tokens", options.tokens)):
        if value is not None and not 0 < value < float("inf"):
            raise PriceError(f"{option} must be a positive number, not {value}")
    if options.instance is None:
        if options.provider or options.region or options.spot:
            raise PriceError("--provider, --region and --spot choose a price of --instance")
        given = options.price
        return None if given is None else HourlyRate(usd_per_hour=given, kind="given")
    if options.price is not None:
        raise PriceError("a cost needs --price or --instance, and not both")
    price = find_price(read_prices(), options.instance, options.provider, options.region).price
    rate = table_tariff(price, date.today(), options.spot)
    if rate is None:
        raise PriceError(f"the table has no spot price of {options.instance!r}; --price gives one")
    return rate

"""Hourly prices of machines, as options name them; the door `accel_bench.rates` leads here."""

from __future__ import annotations

from datetime import date as Date

from accel_bench.analysis.metrics.cost import HourlyRate
from accel_bench.cli.options import PriceOptions
from accel_bench.errors import PriceError
from accel_bench_advise.price_table import Price, find_price, read_prices


def hourly_rate(options: PriceOptions) -> HourlyRate | None:
    """Return the price named by the options; None without one. Raises PriceError."""
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
    rate = table_tariff(price, Date.today(), options.spot)
    if rate is None:
        raise PriceError(f"the table has no spot price of {options.instance!r}; --price gives one")
    return rate


def table_tariff(price: Price, today: Date, spot: bool = False) -> HourlyRate | None:
    """Return a row of the price table as a rate; None for a missing spot price."""
    usd = price.spot_usd_per_hour if spot else price.usd_per_hour
    if usd is None:
        return None
    same = price.model_dump(exclude={"usd_per_hour", "spot_usd_per_hour"})
    return HourlyRate(
        **same,
        usd_per_hour=usd,
        kind="spot" if spot else "on demand",
        age_days=price.age_days(today),
        stale=price.is_stale(today),
    )

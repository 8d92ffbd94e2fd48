"""Hourly prices from the price table, which other plugins get by the group `accel_bench.rates`."""

from __future__ import annotations

from datetime import date as Date

from accel_bench.analysis.metrics.hourly_rate import HourlyRate
from accel_bench.errors import PriceError
from accel_bench_advise.price_table import Price, find_price, read_prices


def hourly_rate(instance: str, provider: str | None, region: str | None, spot: bool) -> HourlyRate:
    """Return the hourly price of an instance in the price table; if `spot`, its spot price.

    Raises PriceError if the table has none, or several.
    """
    price = find_price(read_prices(), instance, provider, region).price
    rate = table_tariff(price, Date.today(), spot)
    if rate is None:
        raise PriceError(f"the table has no spot price of {instance!r}; --price gives one")
    return rate


def table_tariff(price: Price, today: Date, spot: bool = False) -> HourlyRate | None:
    """Return a row of the price table as an hourly rate: on demand, or spot if `spot` is true.

    None if `spot` is true and the row has no spot price. The price's age is counted up to `today`.
    """
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

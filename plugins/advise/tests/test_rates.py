"""The price of an hour carries the row of the table that it comes from."""

from __future__ import annotations

from datetime import date
from typing import Any

from accel_bench_advise.price_table import Price
from accel_bench_advise.rates import table_tariff


def make_price(**changes: Any) -> Price:
    """A machine with eight devices; `changes` are fields."""
    fields: dict[str, Any] = {
        "provider": "aws",
        "instance": "p4d.24xlarge",
        "region": "us-east-1",
        "device": "a100-sxm-40gb",
        "devices": 8,
        "usd_per_hour": 32.0,
        "source": "a list",
        "date": "2025-01-01",
    }
    return Price(**{**fields, **changes})


def test_a_tariff_carries_the_row_it_comes_from_and_its_age() -> None:
    price = make_price(spot_usd_per_hour=9.0)
    fresh = table_tariff(price, date(2025, 4, 1))
    old = table_tariff(price, date(2025, 4, 2))
    assert fresh is not None
    assert old is not None
    assert (fresh.age_days, fresh.stale, old.age_days, old.stale) == (90, False, 91, True)
    assert (fresh.usd_per_hour, fresh.kind, fresh.source) == (32.0, "on demand", "a list")
    spot = table_tariff(price, date(2025, 4, 1), spot=True)
    assert spot is not None
    assert (spot.usd_per_hour, spot.kind) == (9.0, "spot")
    assert table_tariff(make_price(), date(2025, 4, 1), spot=True) is None

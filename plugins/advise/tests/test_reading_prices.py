"""Prices have a date and a source, the user's rows win, and an unclear question is no answer."""

from __future__ import annotations

import os
from collections import Counter
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from accel_bench_advise import price_table as prices
from accel_bench_advise.price_table import (
    MAXIMUM_BYTES,
    Price,
    PriceTable,
    find_price,
    read_prices,
    shipped_prices,
    user_table_path,
)

from accel_bench.catalog.hardware import list_hardware
from accel_bench.errors import PriceError

from .price_fields import FIELDS


def row(**changes: Any) -> dict[str, Any]:
    """A row as a file holds it."""
    return {**FIELDS, **changes}


def price(**changes: Any) -> Price:
    """A row as a model."""
    return Price(**row(**changes))


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's table, which the environment names; it is not there yet."""
    path = tmp_path / "prices.yaml"
    monkeypatch.setenv("ACCEL_BENCH_PRICES", str(path))
    return path


def test_shipped_rows_have_a_date_a_source_and_a_device_of_the_table() -> None:
    shipped = shipped_prices()
    assert len(shipped) >= 50
    assert {one.provider for one in shipped} >= {"aws", "gcp", "azure", "lambda"}
    assert {one.device for one in shipped} <= set(list_hardware())
    assert all(one.source and date.fromisoformat(one.date) for one in shipped)
    assert max(Counter(one.key for one in shipped).values()) == 1


def test_shipped_prices_of_one_device_lie_within_a_factor_of_ten() -> None:
    """A price per device in the place of one per machine would break it."""
    by_device: dict[str, list[float]] = {}
    for one in shipped_prices():
        by_device.setdefault(one.device, []).append(one.usd_per_hour / one.devices)
    assert {d: p for d, p in by_device.items() if max(p) > 10 * min(p)} == {}


@pytest.mark.usefixtures("own")
def test_a_table_that_is_named_and_not_there_is_an_error_with_a_way_out() -> None:
    with pytest.raises(PriceError, match=r"ACCEL_BENCH_PRICES names .*prices import"):
        read_prices()


def test_without_a_table_of_one_s_own_the_shipped_one_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ACCEL_BENCH_PRICES", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert user_table_path() == tmp_path / "accel-bench" / "prices.yaml"
    assert not any(listed.own for listed in read_prices())


def test_a_relative_configuration_folder_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCEL_BENCH_PRICES", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", os.sep + "home-of-mine")
    assert user_table_path() == Path("/home-of-mine/.config/accel-bench/prices.yaml")


def test_a_user_without_a_home_has_the_shipped_table(homeless: Path) -> None:
    assert not any(listed.own for listed in read_prices())
    assert list(homeless.iterdir()) == []


def test_a_row_of_the_user_s_replaces_the_shipped_one_and_no_other(own: Path) -> None:
    own.write_text(yaml.safe_dump({"prices": [row()]}))
    found = read_prices()
    assert len(found) == len(shipped_prices())
    (mine,) = [listed for listed in found if listed.own]
    assert mine.price == price()
    assert find_price(found, "p4d.24xlarge") == mine


def test_the_user_s_instance_is_asked_before_the_shipped_one_of_another_region(own: Path) -> None:
    own.write_text(yaml.safe_dump({"prices": [row(region="eu-west-1", usd_per_hour=25.0)]}))
    assert find_price(read_prices(), "p4d.24xlarge").price.usd_per_hour == 25.0
    shipped = find_price(read_prices(), "p4d.24xlarge", region="us-east-1")
    assert not shipped.own


def test_several_prices_of_an_instance_need_a_region(own: Path) -> None:
    rows = [row(region="eu-west-1"), row(region="us-west-2"), row(provider="other", region="")]
    own.write_text(yaml.safe_dump({"prices": rows}))
    found = read_prices()
    with pytest.raises(PriceError, match=r"aws eu-west-1.*--region or --provider"):
        find_price(found, "p4d.24xlarge")
    assert find_price(found, "p4d.24xlarge", region="us-west-2").price.region == "us-west-2"
    assert find_price(found, "p4d.24xlarge", provider="other").price.provider == "other"
    with pytest.raises(PriceError, match="none of them in mars"):
        find_price(found, "p4d.24xlarge", region="mars")


def test_an_unknown_instance_gets_the_nearest_one() -> None:
    shipped = [prices.PriceEntry(one, own=False) for one in shipped_prices()]
    with pytest.raises(PriceError, match=r"did you mean 'p4d\.24xlarge'"):
        find_price(shipped, "p4d.24xlarg")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"usd_per_hour": 0}, "greater than 0"),
        ({"usd_per_hour": "20"}, "valid number"),
        ({"devices": 0}, "greater than 0"),
        ({"date": "last year"}, "YYYY-MM-DD"),
        ({"date": "2026-02-30"}, "YYYY-MM-DD"),
        ({"date": (date.today() + timedelta(days=3)).isoformat()}, "in the future"),
        ({"usd": 3}, "unknown key"),
    ],
)
def test_a_wrong_row_is_refused_with_file_and_line(
    change: dict[str, Any], words: str, own: Path
) -> None:
    own.write_text("# mine\n" + yaml.safe_dump({"prices": [row(**change)]}))
    with pytest.raises(PriceError, match=words) as caught:
        read_prices()
    assert f"{own}:" in str(caught.value)


def test_two_rows_for_one_thing_are_refused() -> None:
    with pytest.raises(ValueError, match=r"two rows for aws p4d\.24xlarge us-east-1"):
        PriceTable(prices=(price(), price(usd_per_hour=3.0)))


def test_a_table_that_is_too_large_or_no_text_is_refused(own: Path) -> None:
    own.write_bytes(b"#" * (MAXIMUM_BYTES + 1))
    with pytest.raises(PriceError, match="larger than"):
        read_prices()
    own.write_bytes(b"\xff\xfe")
    with pytest.raises(PriceError, match="not UTF-8 text"):
        read_prices()


def test_a_price_is_stale_after_90_days() -> None:
    day = date(2026, 1, 2)
    assert not price().is_stale(day + timedelta(days=90))
    assert price().is_stale(day + timedelta(days=91))
    assert price().age_days(day + timedelta(days=91)) == 91

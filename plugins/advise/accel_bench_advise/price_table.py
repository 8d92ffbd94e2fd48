"""Hourly prices of machines: a shipped table, and the user's own, which replaces its rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import date as Date
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from pydantic import Field, field_validator

from accel_bench.documents.base import Frozen, PositiveInt
from accel_bench.documents.files import read_text
from accel_bench.documents.load import load_file, load_yaml
from accel_bench.documents.presets import find_presets
from accel_bench.documents.validate import validate
from accel_bench.errors import PriceError, did_you_mean

STALE_DAYS = 90
"""Age in days from which a price is marked: clouds change theirs several times a year."""

MAXIMUM_BYTES = 2 * 1024 * 1024
"""Size limit of the user's table in bytes; some ten thousand rows."""

TABLE_VARIABLE = "ACCEL_BENCH_PRICES"
"""Environment variable with the path of the user's table of prices."""


class Price(Frozen):
    """Price of one machine."""

    provider: str = Field(min_length=1)
    """Cloud provider: `aws`, `gcp`, `azure` ..."""

    instance: str = Field(min_length=1)
    """Provider's name for the kind of machine, such as `p4d.24xlarge`."""

    region: str
    """Region of the price; empty if it is the same everywhere."""

    device: str = Field(min_length=1)
    """Accelerator of the machine: a name that `catalog devices` prints, or the catalog's own."""

    devices: PositiveInt
    """Number of accelerators in the machine."""

    usd_per_hour: float = Field(gt=0)
    """Price of an hour on demand in US dollars: no reservation, no tax, Linux."""

    spot_usd_per_hour: float | None = Field(None, gt=0)
    """Price of an hour of interruptible (spot) capacity in US dollars; null if unknown."""

    source: str = Field(min_length=1)
    """Source of the price."""

    date: str
    """Day of the price, `YYYY-MM-DD`."""

    @field_validator("date")
    @classmethod
    def _day(cls, date: str) -> str:
        try:
            day = Date.fromisoformat(date)
        except ValueError:
            raise ValueError(f"{date!r} is no day in the form YYYY-MM-DD") from None
        # A price of the future would never be stale; it may be tomorrow where this one was read.
        if day > Date.today() + timedelta(days=1):
            raise ValueError(f"{date} is in the future")
        return day.isoformat()

    @property
    def key(self) -> tuple[str, str, str]:
        """Provider, instance and region: unique in a table."""
        return self.provider, self.instance, self.region

    def age_days(self, today: Date) -> int:
        """Return the age of the price in days."""
        return (today - Date.fromisoformat(self.date)).days

    def is_stale(self, today: Date) -> bool:
        """Return whether the price is older than `STALE_DAYS`."""
        return self.age_days(today) > STALE_DAYS


class PriceTable(Frozen):
    """A file of prices: `sample_configurations/prices/<provider>.yaml`, or the user's own."""

    prices: tuple[Price, ...]
    """Rows of the table, one for each provider, instance and region."""

    @field_validator("prices")
    @classmethod
    def _one_each(cls, prices: tuple[Price, ...]) -> tuple[Price, ...]:
        seen: set[tuple[str, str, str]] = set()
        for price in prices:
            if price.key in seen:
                raise ValueError(f"two rows for {' '.join(filter(None, price.key))}")
            seen.add(price.key)
        return prices


class PriceEntry(NamedTuple):
    """A price; `own` is true if it is from the user's own table."""

    price: Price
    own: bool


def user_table_path() -> Path:
    """Return the path of the user's table: ACCEL_BENCH_PRICES, else in the configuration folder."""
    if named := os.environ.get(TABLE_VARIABLE):
        return Path(os.path.expanduser(named))
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    # A relative folder is ignored, as the XDG specification asks.
    folder = configured if os.path.isabs(configured) else os.path.expanduser("~/.config")
    return Path(folder, "accel-bench", "prices.yaml")


def read_prices() -> list[PriceEntry]:
    """Return the sorted rows of both tables; a user's row replaces the shipped row of the same key.

    Raises PriceError (or ScenarioError, for invalid YAML) with file, line and key.
    """
    path = user_table_path()
    if TABLE_VARIABLE in os.environ and not path.exists():
        raise PriceError(
            f"{TABLE_VARIABLE} names {path}, which is not there; "
            "`accel-bench catalog prices import FILE` makes it, or unset the variable"
        )
    rows = {price.key: PriceEntry(price, own=False) for price in shipped_prices()}
    rows.update({price.key: PriceEntry(price, own=True) for price in user_prices(path)})
    return [rows[key] for key in sorted(rows)]


def shipped_prices() -> list[Price]:
    """Return the rows that ship with accel-bench or with plugins."""
    rows: list[Price] = []
    for path in find_presets("prices").values():
        document = load_file(path)
        rows += validate(PriceTable, document.data, document.where, PriceError).prices
    return rows


def user_prices(path: Path) -> list[Price]:
    """Return the rows of the user's table; an empty list if there is no file or no home folder."""
    text = "" if str(path).startswith("~") else read_table_text(path)
    if not text.strip():
        return []
    document = load_yaml(text, str(path))
    return list(validate(PriceTable, document.data, document.where, PriceError).prices)


def read_table_text(path: Path) -> str:
    """Return the user's table as text; empty if there is no file.

    Raises PriceError for a file that cannot be read or is too large.
    """
    try:
        return read_text(path, MAXIMUM_BYTES, PriceError, "; keep fewer regions in it")
    except PriceError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return ""
        raise


def find_price(
    prices: Sequence[PriceEntry],
    instance: str,
    provider: str | None = None,
    region: str | None = None,
) -> PriceEntry:
    """Return the price of an instance, narrowed by provider and region if they are given.

    If the user's table has the instance, the shipped one is ignored. Raises PriceError if no price
    or several prices remain.
    """
    named = [entry for entry in prices if entry.price.instance == instance]
    if not named:
        near = did_you_mean(instance, {entry.price.instance for entry in prices})
        raise PriceError(
            f"no price of {instance!r}{near} (`accel-bench catalog prices` shows all, "
            "`catalog prices import` adds more, and --price gives one)"
        )
    fitting = [
        entry
        for entry in named
        if provider in (None, entry.price.provider) and region in (None, entry.price.region)
    ]
    fitting = [entry for entry in fitting if entry.own] or fitting
    if len(fitting) == 1:
        return fitting[0]
    places = ", ".join(f"{row.price.provider} {row.price.region}".strip() for row in named)
    where = " ".join(filter(None, (provider, region)))
    problem = "choose with --region or --provider" if fitting else f"none of them in {where}"
    raise PriceError(f"{instance!r} has {len(named)} prices ({places}); {problem}")

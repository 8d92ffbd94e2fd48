"""Import of prices from a catalog: a CSV file with the columns of SkyPilot's `vms.csv`."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import date as Date
from datetime import datetime, timezone
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from accel_bench.documents.files import read_text, write_atomically
from accel_bench.errors import PriceError
from accel_bench_advise.price_table import (
    MAXIMUM_BYTES,
    TABLE_VARIABLE,
    Price,
    read_table_text,
    user_prices,
    user_table_path,
)

MAXIMUM_CATALOG_BYTES = 32 * 1024 * 1024
"""Maximum bytes of a catalog file; the largest public one has about 3 MB."""

MAXIMUM_CHARACTERS = 100
"""Maximum length of a name in a catalog."""

MAXIMUM_USD = 1e6
"""Maximum dollars per hour; a higher price is treated as a mistake."""

NEEDED = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region")
"""Columns that a catalog must have; `SpotPrice` is optional, others are ignored."""


class Origin(NamedTuple):
    """Provider, source and date of a catalog, which its file does not contain."""

    provider: str
    source: str

    date: str
    """Day on which the prices were valid, `YYYY-MM-DD`."""


def origin_of(file: Path, provider: str | None, source: str | None, date: str | None) -> Origin:
    """Return a catalog's origin; parts that are None are taken from its file's name and time.

    Both aws.csv and aws/vms.csv are of the provider `aws`. Raises PriceError for an unreadable file
    or an invalid date.
    """
    folder, stem = file.resolve().parent.name, file.resolve().stem
    named = (folder if stem in ("vms", "instances") else stem) or stem
    day = _changed(file) if date is None else _day(date)
    return Origin(provider or named, source or f"imported from {file.name}", day.isoformat())


def _changed(file: Path) -> Date:
    try:
        changed = file.stat().st_mtime
    except (OSError, ValueError) as error:
        raise PriceError(f"{str(file)!r} cannot be read: {error}") from error
    return min(datetime.fromtimestamp(changed, timezone.utc).date(), Date.today())


def _day(text: str) -> Date:
    try:
        day = Date.fromisoformat(text)
    except ValueError:
        raise PriceError(f"--date {text!r} is no day in the form YYYY-MM-DD") from None
    if day > Date.today():
        raise PriceError(f"--date {text} is in the future")
    return day


def read_catalog(
    path: Path,
    origin: Origin,
    regions: Collection[str] = (),
    instances: Collection[str] = (),
) -> tuple[list[Price], dict[str, int]]:
    """Return the prices of a catalog, and the number of rows without a usable price by reason.

    `regions` and `instances` restrict the rows. Zones of a region become one row with the highest
    price, so that no cost is too low. Raises PriceError with file and line for an invalid row.
    """
    prices: dict[tuple[str, str, str], Price] = {}
    left_out: Counter[str] = Counter()
    for line, cells in _rows(path):
        of_region = not regions or cells["Region"] in regions
        if not of_region or (instances and cells["InstanceType"] not in instances):
            continue
        price = _price(cells, origin, f"{path}:{line}")
        if isinstance(price, str):
            left_out[price] += 1
        else:
            known = prices.get(price.key, price)
            prices[price.key] = _dearest(known, price, f"{path}:{line}")
    return list(prices.values()), left_out


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    text = read_text(path, MAXIMUM_CATALOG_BYTES, PriceError, ", which no price catalog is")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, [])
        _check_header(path, header)
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise PriceError(
                    f"{path}:{reader.line_num}: {len(cells)} cells, while the header names "
                    f"{len(header)} columns"
                )
            yield reader.line_num, dict(zip(header, map(str.strip, cells), strict=True))
    except csv.Error as error:
        raise PriceError(f"{path}:{reader.line_num}: no CSV: {error}") from error


def _check_header(path: Path, header: list[str]) -> None:
    missing = [column for column in NEEDED if column not in header]
    twice = sorted({column for column in header if header.count(column) > 1})
    if missing or twice:
        problem = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(twice)} twice"
        named = ", ".join(column[:MAXIMUM_CHARACTERS] for column in header[:20]) or "nothing"
        raise PriceError(
            f"{path}:1: the header {problem}; it names {named}. A catalog has the columns "
            f"{', '.join(NEEDED)}, as SkyPilot's vms.csv has"
        )


def _price(cells: Mapping[str, str], origin: Origin, place: str) -> Price | str:
    """Return the price in a row of a catalog, or the reason why it is not usable.

    `cells` are the row's texts by column, and `place` is its file and line for error messages.
    """
    if not cells["InstanceType"]:
        return "no instance"
    if not cells["AcceleratorName"]:
        return "no accelerator"
    count = _number(cells, "AcceleratorCount", place)
    usd = _number(cells, "Price", place)
    if count is None:
        return "no accelerator"
    if count != int(count):
        return "a part of an accelerator"
    if usd is None:
        return "no price on demand"
    return Price(
        **origin._asdict(),
        instance=_name(cells, "InstanceType", place),
        region=_name(cells, "Region", place),
        device=_name(cells, "AcceleratorName", place),
        devices=int(count),
        usd_per_hour=usd,
        spot_usd_per_hour=_number(cells, "SpotPrice", place),
    )


def _number(cells: Mapping[str, str], column: str, place: str) -> float | None:
    """Return the positive number in a column; None for an empty cell or a missing column.

    `place` is the row's file and line. Raises PriceError with it for other text.
    """
    text = cells.get(column, "")
    if not text:
        return None
    try:
        # float() alone would read 1_000 and the digits of other scripts.
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not 0 < value <= MAXIMUM_USD:
        raise PriceError(f"{place}: {column} is {text[:MAXIMUM_CHARACTERS]!r}, no positive number")
    return value


def _name(cells: Mapping[str, str], column: str, place: str) -> str:
    """Return the name in a column.

    `place` is the row's file and line. Raises PriceError with it for a name that is too long or
    cannot be printed.
    """
    text = cells[column]
    if len(text) > MAXIMUM_CHARACTERS or not text.isprintable():
        raise PriceError(f"{place}: {column} is {text[:MAXIMUM_CHARACTERS]!r}, which is no name")
    return text


def _dearest(known: Price, other: Price, place: str) -> Price:
    """Return the prices of two zones of a region as one row with the higher price.

    `place` is file and line of `other`. Raises PriceError with it if their accelerators differ.
    """
    if (known.device, known.devices) != (other.device, other.devices):
        raise PriceError(
            f"{place}: {other.instance} has {other.devices} x {other.device} here and "
            f"{known.devices} x {known.device} above"
        )
    spots = [row.spot_usd_per_hour for row in (known, other) if row.spot_usd_per_hour is not None]
    return known.model_copy(
        update={
            "usd_per_hour": max(known.usd_per_hour, other.usd_per_hour),
            "spot_usd_per_hour": max(spots, default=None),
        }
    )


def add_to_user_table(prices: Iterable[Price]) -> Path:
    """Add rows to the user's table, keep its last version as `.bak`, and return the file.

    The file is replaced atomically. Raises PriceError for an invalid or too large table, and
    StoreError if the file cannot be written.
    """
    named = user_table_path()
    if str(named).startswith("~"):
        raise PriceError(
            f"{str(named)!r} begins with `~`, which stands for no home folder here; let "
            f"{TABLE_VARIABLE} name a file by its whole path"
        )
    target = named.resolve()
    old = read_table_text(target)
    text = table_text([*user_prices(target), *prices], leading_comments(old))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PriceError(f"{target.parent} cannot be made: {error.strerror}") from error
    if old:
        write_atomically(target.with_name(f"{target.name}.bak"), old)
    write_atomically(target, text)
    return target


def table_text(prices: Iterable[Price], header: str = "") -> str:
    """Return the text of a price table: `header`, then a line of YAML for each price, sorted.

    Of prices with equal keys the last is kept. Raises PriceError if the table is too large.
    """
    rows = {price.key: json.dumps(price.model_dump(), ensure_ascii=False) for price in prices}
    text = header + "prices:\n" + "".join(f"  - {rows[key]}\n" for key in sorted(rows))
    if len(text.encode()) > MAXIMUM_BYTES:
        raise PriceError(
            f"the table would be larger than {MAXIMUM_BYTES} bytes; import fewer regions or "
            "instances (--region, --instance)"
        )
    return text


def leading_comments(text: str) -> str:
    """Return the comment lines at the start of a table's file, which rewriting preserves."""
    lines = text.splitlines()
    comments = takewhile(lambda line: line.startswith("#") or not line.strip(), lines)
    return "".join(f"{line}\n" for line in comments)

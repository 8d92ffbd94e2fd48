"""`accel-bench prices`: the table of prices that `cost` reads, and how it is brought up to date."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from accel_bench.cli.output import Format, print_rows

if TYPE_CHECKING:
    from accel_bench.catalog.prices import Price

app = typer.Typer(
    no_args_is_help=True, help="Prices of machines by the hour, each with its date and source."
)

COLUMNS = (
    "provider",
    "instance",
    "region",
    "device",
    "devices",
    "usd_per_hour",
    "spot_usd_per_hour",
    "date",
    "stale",
    "table",
    "source",
)
"""Columns of `prices list`."""


@app.command("list")
def list_prices(output: Format = "table") -> None:
    """List all prices: those that ship, replaced by your own where you have them."""
    from datetime import date

    from accel_bench.catalog.prices import read_prices

    today = date.today()
    rows = [
        {
            **listed.price.model_dump(),
            "stale": listed.price.is_stale(today),
            "table": "own" if listed.own else "shipped",
        }
        for listed in read_prices()
    ]
    print_rows(COLUMNS, rows, output)


@app.command("import")
def import_prices(  # noqa: PLR0913, PLR0917
    file: Annotated[
        Path, typer.Argument(help="A catalog: CSV with the columns of SkyPilot's vms.csv.")
    ],
    provider: Annotated[
        str | None,
        typer.Option(help="Whose prices they are; else the file's name, or that of its folder."),
    ] = None,
    region: Annotated[
        list[str] | None, typer.Option(help="Take this region only; can be repeated.")
    ] = None,
    instance: Annotated[
        list[str] | None, typer.Option(help="Take this kind of machine only; can be repeated.")
    ] = None,
    date: Annotated[
        str | None,
        typer.Option(help="Day on which the prices held, YYYY-MM-DD; else when the file changed."),
    ] = None,
    source: Annotated[str | None, typer.Option(help="Where the file comes from.")] = None,
) -> None:
    """Write a catalog's prices of machines with accelerators into your own table.

    Your table is the file that ACCEL_BENCH_PRICES names, else accel-bench/prices.yaml in the
    configuration folder. Rows for the same provider, instance and region are replaced, others stay;
    the version before is kept beside it as prices.yaml.bak.
    """
    from accel_bench.catalog.price_import import Origin, read_catalog
    from accel_bench.catalog.prices import user_table_path

    origin = Origin(
        provider or _provider(file),
        source or f"imported from {file.name}",
        _day(date, file),
    )
    catalog = read_catalog(file, origin, region or (), instance or ())
    target = _write(user_table_path(), catalog.prices, file)
    left_out = ", ".join(f"{count} with {why}" for why, count in catalog.left_out.items())
    typer.echo(
        f"{len(catalog.prices)} prices of {origin.provider}, dated {origin.date}, are in {target}"
        + (f"; rows left out: {left_out}" if left_out else "")
    )


def _provider(file: Path) -> str:
    """`aws` for aws.csv and for aws/vms.csv."""
    stem = file.resolve().stem
    return (file.resolve().parent.name if stem in ("vms", "instances") else stem) or stem


def _day(date: str | None, file: Path) -> str:
    """The day that was given, checked before anything is read; else the file's own."""
    from datetime import date as day
    from datetime import datetime, timezone

    from accel_bench.errors import PriceError

    if date is None:
        try:
            changed = file.stat().st_mtime
        except (OSError, ValueError) as error:
            raise PriceError(f"{str(file)!r} cannot be read: {error}") from error
        return min(datetime.fromtimestamp(changed, timezone.utc).date(), day.today()).isoformat()
    try:
        given = day.fromisoformat(date)
    except ValueError:
        raise PriceError(f"--date {date!r} is no day in the form YYYY-MM-DD") from None
    if given > day.today():
        raise PriceError(f"--date {date} is in the future")
    return given.isoformat()


def _write(path: Path, prices: list[Price], file: Path) -> Path:
    """Put the prices into the table's file, which is the old one or the new one at any moment."""
    from accel_bench.catalog.prices import (
        leading_comments,
        merge,
        read_table_text,
        table_text,
        user_prices,
    )
    from accel_bench.documents.files import write_atomically
    from accel_bench.errors import PriceError

    if not prices:
        raise PriceError(f"{file} holds no price of a machine with accelerators that was asked for")
    target = path.resolve()
    old = read_table_text(target)
    text = table_text(merge(user_prices(target), prices), leading_comments(old))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PriceError(f"{target.parent} cannot be made: {error.strerror}") from error
    if old:
        write_atomically(target.with_name(f"{target.name}.bak"), old)
    write_atomically(target, text)
    return target

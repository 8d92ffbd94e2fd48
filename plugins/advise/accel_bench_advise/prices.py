"""`accel-bench catalog prices`: list the prices of machines, and import new ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from accel_bench.cli.options import Names, takes
from accel_bench.cli.output import OutputFormat, print_rows
from accel_bench.report.table import entry

PRICES = (
    entry("provider", kind="word"),
    entry("instance", kind="name"),
    entry("region", kind="word", rank=2),
    entry("device", kind="word"),
    entry("devices", kind="number"),
    entry("usd_per_hour", "price", unit="USD/hour", form="{:,.2f}".format, kind="number"),
    entry(
        "spot_usd_per_hour", "spot", unit="USD/hour", form="{:,.2f}".format, kind="number", rank=3
    ),
    entry("date", kind="word", rank=1),
    entry("stale", form=lambda stale: "stale" if stale else "-", kind="word", rank=1),
    entry("table", kind="word", rank=4),
    entry("source", rank=5),
)
"""Columns of `catalog prices`."""

app = typer.Typer(help="Prices of machines by the hour, each with its date and source.")


@app.command("list")
def list_prices(output: OutputFormat = "table") -> None:
    """List all prices: the shipped table, in which your own rows replace rows of the same key."""
    from datetime import date

    from accel_bench_advise.price_table import read_prices

    today = date.today()
    rows = [
        {
            **listed.price.model_dump(),
            "stale": listed.price.is_stale(today),
            "table": "own" if listed.own else "shipped",
        }
        for listed in read_prices()
    ]
    print_rows(PRICES, rows, output)


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Command-line options of `accel-bench catalog prices import`."""

    file: Annotated[
        Path, typer.Argument(help="A catalog: CSV with the columns of SkyPilot's vms.csv.")
    ]
    provider: Annotated[
        str | None,
        typer.Option(help="Whose prices they are; else the file's name, or that of its folder."),
    ] = None
    region: Annotated[Names, typer.Option(help="Take this region only; can be repeated.")] = None
    instance: Annotated[
        Names, typer.Option(help="Take this kind of machine only; can be repeated.")
    ] = None
    date: Annotated[
        str | None,
        typer.Option(help="Day on which the prices held, YYYY-MM-DD; else when the file changed."),
    ] = None
    source: Annotated[str | None, typer.Option(help="Where the file comes from.")] = None


@app.command("import")
@takes(ImportOptions)
def import_prices(options: ImportOptions) -> None:
    """Write prices of a catalog into your own table.

    Your table is the file that ACCEL_BENCH_PRICES names, else accel-bench/prices.yaml in the
    configuration folder. Rows for the same provider, instance and region are replaced, and all
    others stay. The earlier version is kept as prices.yaml.bak in the same folder.
    """
    from accel_bench.analysis.wording import count
    from accel_bench.errors import PriceError
    from accel_bench_advise.price_import import add_to_user_table, origin_of, read_catalog

    file = options.file
    origin = origin_of(file, options.provider, options.source, options.date)
    rows, others = read_catalog(file, origin, options.region or (), options.instance or ())
    if not rows:
        raise PriceError(
            f"{file} holds no price of a machine with accelerators that the options name"
        )
    table = add_to_user_table(rows)
    left_out = ", ".join(f"{number} with {why}" for why, number in others.items())
    prices = count(len(rows), "price")
    typer.echo(
        f"{prices} of {origin.provider}, dated {origin.date}, now in {table}"
        + (f"; rows left out: {left_out}" if left_out else "")
    )

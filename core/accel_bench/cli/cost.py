"""`accel-bench cost`: what stored throughput means in dollars."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from accel_bench.cli import options

if TYPE_CHECKING:
    from accel_bench.analysis.metrics.cost import HourlyRate
    from accel_bench.result import Result


def cost(  # noqa: PLR0913, PLR0917
    experiments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID",
            help="Runs, experiments or sessions; their beginning will do. Without any, all.",
        ),
    ] = None,
    price: Annotated[
        float | None, typer.Option(help="US dollars for an hour of one machine.")
    ] = None,
    instance: Annotated[
        str | None, typer.Option(help="Kind of machine in the table of prices (`prices list`).")
    ] = None,
    provider: Annotated[str | None, typer.Option(help="Its provider, where several have it.")] = (
        None
    ),
    region: Annotated[str | None, typer.Option(help="Its region, where it has several.")] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Take the table's spot price.")] = False,
    instances: Annotated[
        int | None,
        typer.Option(min=1, help="Machines that were used; else as many as hold the devices."),
    ] = None,
    for_tokens: Annotated[
        float | None, typer.Option(help="Tokens of your own data, such as 1.2e9 for one epoch.")
    ] = None,
    results: options.Results = options.DEFAULT_RESULTS,
    output: Annotated[
        Literal["table", "json", "csv"], typer.Option("--format", help="How to print.")
    ] = "table",
) -> None:
    """Print what a million tokens cost with each experiment, at the price of a machine.

    The measured throughput counts real tokens, without padding; starting up, loading, compiling and
    writing checkpoints are not in the cost. Prices older than 90 days are marked as stale.
    """
    from accel_bench.analysis.metrics.cost import cost_of_results
    from accel_bench.cli.output import print_report
    from accel_bench.report.views.cost import cost_report

    tariff = _tariff(price, instance, provider, region, spot)
    if for_tokens is not None:
        _check_positive("--for-tokens", for_tokens)
    document = cost_of_results(_results(results, experiments or []), tariff, for_tokens, instances)
    print_report(cost_report(document), output)
    if tariff.stale:
        typer.echo(
            f"warning: the price is {tariff.age_days} days old ({tariff.date}); `accel-bench "
            "prices import` brings newer ones, --price gives one",
            err=True,
        )


def _tariff(
    price: float | None,
    instance: str | None,
    provider: str | None,
    region: str | None,
    spot: bool,
) -> HourlyRate:
    """Return the price that the options name."""
    from datetime import date

    from accel_bench.analysis.metrics.cost import HourlyRate, table_tariff
    from accel_bench.catalog.prices import find_price, read_prices
    from accel_bench.errors import PriceError

    if (price is None) == (instance is None):
        raise PriceError("a cost needs --price or --instance, and not both")
    if price is not None:
        if provider or region or spot:
            raise PriceError("--provider, --region and --spot choose a price of --instance")
        _check_positive("--price", price)
        return HourlyRate(usd_per_hour=price, kind="given")
    assert instance is not None
    found = find_price(read_prices(), instance, provider, region).price
    tariff = table_tariff(found, date.today(), spot)
    if tariff is None:
        raise PriceError(f"the table has no spot price of {instance!r}; --price gives one")
    return tariff


def _check_positive(option: str, value: float) -> None:
    """Refuse a figure that no cost follows from."""
    from accel_bench.errors import PriceError

    if not 0 < value < float("inf"):
        raise PriceError(f"{option} must be a positive number, not {value}")


def _results(folder: Path, identifiers: list[str]) -> list[Result]:
    """Return all runs of the experiments that the ids name. Raises StoreError."""
    from accel_bench.store.database import open_store

    with open_store(folder, write=False) as store:
        if not identifiers:
            return store.results()
        found = {r.experiment.id for name in identifiers for r in store.find(name)}
        return store.results(experiment_ids=found)

"""`accel-bench cost`: what stored throughput means in dollars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from accel_bench.cli.options import DEFAULT_RESULTS, Names, Results, takes

if TYPE_CHECKING:
    from accel_bench.analysis.metrics.cost import HourlyRate


@dataclass(frozen=True, kw_only=True)
class CostOptions:
    """Options of `cost`."""

    experiments: Annotated[
        Names,
        typer.Argument(
            metavar="ID",
            help="Runs, experiments or sessions; their beginning will do. Without any, all.",
        ),
    ] = None
    price: Annotated[float | None, typer.Option(help="US dollars for an hour of one machine.")] = (
        None
    )
    instance: Annotated[
        str | None, typer.Option(help="Kind of machine in the table of prices (`prices list`).")
    ] = None
    provider: Annotated[str | None, typer.Option(help="Its provider, where several have it.")] = (
        None
    )
    region: Annotated[str | None, typer.Option(help="Its region, where it has several.")] = None
    spot: Annotated[bool, typer.Option("--spot", help="Take the table's spot price.")] = False
    instances: Annotated[
        int | None,
        typer.Option(min=1, help="Machines that were used; else as many as hold the devices."),
    ] = None
    for_tokens: Annotated[
        float | None, typer.Option(help="Tokens of your own data, such as 1.2e9 for one epoch.")
    ] = None
    results: Results = DEFAULT_RESULTS
    output: Annotated[
        Literal["table", "json", "csv"], typer.Option("--format", help="How to print.")
    ] = "table"


@takes(CostOptions)
def cost(options: CostOptions) -> None:
    """Print what a million tokens cost with each experiment, at the price of a machine.

    The measured throughput counts real tokens, without padding; starting up, loading, compiling and
    writing checkpoints are not in the cost. Prices older than 90 days are marked as stale.
    """
    from accel_bench.analysis.metrics.cost import cost_of_results
    from accel_bench.cli.output import print_report
    from accel_bench.report.views.cost import cost_report
    from accel_bench.runner.unfinished import open_results

    rate = _hourly_rate(options)
    with open_results(options.results) as store:
        names = options.experiments or ()
        ids = {run.experiment.id for name in names for run in store.find(name)}
        runs = store.results(experiment_ids=ids if names else None)
    document = cost_of_results(runs, rate, options.for_tokens, options.instances)
    print_report(cost_report(document), options.output)
    if rate.stale:
        typer.echo(
            f"warning: the price is {rate.age_days} days old ({rate.date}); `accel-bench "
            "prices import` brings newer ones, --price gives one",
            err=True,
        )


def _hourly_rate(options: CostOptions) -> HourlyRate:
    """Return the price that the options name. Raises PriceError for options that name none."""
    from datetime import date

    from accel_bench.analysis.metrics.cost import HourlyRate, table_tariff
    from accel_bench.catalog.prices import find_price, read_prices
    from accel_bench.errors import PriceError

    for option, value in (("--price", options.price), ("--for-tokens", options.for_tokens)):
        if value is not None and not 0 < value < float("inf"):
            raise PriceError(f"{option} must be a positive number, not {value}")
    if options.price is not None and options.instance is None:
        if options.provider or options.region or options.spot:
            raise PriceError("--provider, --region and --spot choose a price of --instance")
        return HourlyRate(usd_per_hour=options.price, kind="given")
    if options.price is not None or options.instance is None:
        raise PriceError("a cost needs --price or --instance, and not both")
    price = find_price(read_prices(), options.instance, options.provider, options.region).price
    rate = table_tariff(price, date.today(), options.spot)
    if rate is None:
        raise PriceError(f"the table has no spot price of {options.instance!r}; --price gives one")
    return rate

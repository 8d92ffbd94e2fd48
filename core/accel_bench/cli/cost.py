"""`accel-bench cost`: what stored throughput means in dollars."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from accel_bench.cli.output import print_json, print_table

if TYPE_CHECKING:
    from accel_bench.analysis.metrics.cost import CostDocument, ExperimentCost, HourlyRate
    from accel_bench.analysis.statistics.estimators import Interval
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
    results: Annotated[
        Path,
        typer.Option("--results", envvar="ACCEL_BENCH_RESULTS", help="The results folder."),
    ] = Path("accel_bench_results"),
    output: Annotated[
        Literal["table", "json", "csv"], typer.Option("--format", help="How to print.")
    ] = "table",
) -> None:
    """Say what a million tokens cost with each experiment, at the price of a machine.

    The measured throughput counts real tokens, without padding; starting up, loading, compiling and
    writing checkpoints are not in the cost. Prices older than 90 days are marked as stale.
    """
    from accel_bench.analysis.metrics.cost import cost_of_results

    tariff = _tariff(price, instance, provider, region, spot)
    if for_tokens is not None:
        _check_positive("--for-tokens", for_tokens)
    document = cost_of_results(_results(results, experiments or []), tariff, for_tokens, instances)
    if output == "json":
        print_json(document.model_dump(mode="json"))
    elif output == "csv":
        from accel_bench.analysis.listing import csv_text

        typer.echo(csv_text([_flat(row, document) for row in document.experiments]), nl=False)
    else:
        _print_table(document)
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
    """The price that the options mean."""
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
    """Refuse what no sum can be made of."""
    from accel_bench.errors import PriceError

    if not 0 < value < float("inf"):
        raise PriceError(f"{option} must be a positive number, not {value}")


def _results(folder: Path, identifiers: list[str]) -> list[Result]:
    """Stored results of the experiments that the ids mean, all runs of each. Raises StoreError."""
    from accel_bench.store.database import open_store

    with open_store(folder, write=False) as store:
        if not identifiers:
            return store.results()
        found = {r.experiment.id for name in identifiers for r in store.find(name)}
        return store.results(experiment_ids=found)


def _flat(row: ExperimentCost, document: CostDocument) -> dict[str, Any]:
    """One experiment on one row; the names are those of the JSON document."""
    cells: dict[str, Any] = {}
    for name, value in row:
        if name in ("tokens_per_second", "usd_per_million_tokens", "usd_for_tokens"):
            cells |= {name: value and value.median}
            cells |= {f"{name}_low": value and value.low, f"{name}_high": value and value.high}
        elif name == "sensitivity":
            cells |= _flat_sensitivity(row)
        elif name == "notes":
            cells[name] = "; ".join(value)
        else:
            cells[name] = value.value if name == "status" else value
    tariff = document.tariff
    kept = ("kind", "instance", "provider", "region", "date", "stale", "source")
    cells |= {f"tariff_{name}": getattr(tariff, name) for name in kept}
    return {**cells, "for_tokens": document.for_tokens}


def _flat_sensitivity(row: ExperimentCost) -> dict[str, float | None]:
    """Two columns for each factor."""
    from accel_bench.analysis.metrics.cost import FACTORS

    by_factor = {one.factor: one for one in row.sensitivity}
    return {
        f"usd_per_million_tokens_{what}_x{factor:g}": getattr(by_factor.get(factor), what, None)
        for what in ("throughput", "price")
        for factor in FACTORS
    }


def _print_table(document: CostDocument) -> None:
    """A row for each experiment, then the price, what is left out, and what to beware of."""
    from accel_bench.analysis.wording import label, rate

    columns = [
        "stack",
        "experiment_id",
        "status",
        "runs",
        "tokens_per_second",
        "instances",
        "usd_per_hour",
        "usd_per_million_tokens",
        "throughput x0.5",
        "throughput x2",
        "price x0.5",
        "price x2",
    ]
    if document.for_tokens:
        columns.append("usd_for_tokens")
    rows = []
    for row in document.experiments:
        cells: list[Any] = [label(row.stack, row.sweep), row.experiment_id, row.status.value]
        cells += [row.runs, _interval(row.tokens_per_second, rate), row.instances]
        cells += [f"{row.usd_per_hour:,.4g}", _interval(row.usd_per_million_tokens, _usd)]
        cells += _sensitivities(row)
        rows.append([*cells, _interval(row.usd_for_tokens, _usd)] if document.for_tokens else cells)
    print_table(columns, rows)
    for line in _lines(document):
        typer.echo(line)


def _sensitivities(row: ExperimentCost) -> list[str]:
    """The costs with a figure off, without those for a factor of 1."""
    flat = _flat_sensitivity(row)
    return [
        "-" if value is None else _usd(value) for name, value in flat.items() if "_x1" not in name
    ]


def _lines(document: CostDocument) -> Iterable[str]:
    """What stands under the table."""
    from accel_bench.analysis.wording import label, listing

    tariff = document.tariff
    what = " ".join(filter(None, (tariff.provider, tariff.instance, tariff.region)))
    dated = f", {tariff.date}" if tariff.date else ""
    stale = f" STALE: {tariff.age_days} days old" if tariff.stale else ""
    named = f", {what}, {tariff.kind}" if what else ""
    yield f"price: {tariff.usd_per_hour:g} USD per hour{named} ({tariff.source}{dated}){stale}"
    if document.for_tokens:
        yield f"usd_for_tokens: for {document.for_tokens:,.0f} tokens"
    yield f"tokens are real ones, without padding; it is {document.excluded}"
    noted: dict[str, list[str]] = {}
    for row in document.experiments:
        for note in row.notes:
            noted.setdefault(note, []).append(label(row.stack, row.sweep))
    yield from (f"{listing(names)}: {note}" for note, names in noted.items())


def _interval(interval: Interval | None, form: Any) -> str:
    """`0.402 (0.398 to 0.405)`; the ends are those of the 95 % interval."""
    if interval is None:
        return "-"
    if interval.low is None or interval.high is None:
        return str(form(interval.median))
    return f"{form(interval.median)} ({form(interval.low)} to {form(interval.high)})"


def _usd(value: float) -> str:
    """Dollars: cents from 100 on, four digits below."""
    return f"{value:,.2f}" if value >= 100 else f"{value:.4g}"

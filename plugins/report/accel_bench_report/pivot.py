"""`accel-bench results pivot`: experiments whose settings differ, in one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from accel_bench.cli.options import Names, split_names, takes
from accel_bench.cli.output import AnyFormat
from accel_bench_report.rates import PriceOptions, hourly_rate
from accel_bench_report.selection import SelectionOptions

if TYPE_CHECKING:
    from accel_bench.documents.base import JsonValue


@dataclass(frozen=True, kw_only=True)
class PivotOptions(PriceOptions, SelectionOptions):
    """Command-line options of `accel-bench results pivot`."""

    rows: Annotated[
        Names, typer.Option(metavar="KEY", help="Settings, `device` or `stack` that make the rows.")
    ] = None
    columns: Annotated[
        Names, typer.Option(metavar="KEY", help="Those that make the columns: a table per figure.")
    ] = None
    values: Annotated[
        Names, typer.Option(metavar="FIGURE", help="Figures, such as tokens_per_hour,mfu.")
    ] = None
    against: Annotated[
        Names,
        typer.Option(metavar="KEY=VALUE", help="With what `times_as_fast` compares."),
    ] = None
    output: AnyFormat = "table"


@takes(PivotOptions)
def pivot(options: PivotOptions) -> None:
    """Arrange stored experiments in one table by their settings, each in a cell of its own.

    Names are separated by commas. Without --rows, the rows are the swept and the main settings that
    differ. If cells would mix experiments, further keys become rows. A failed experiment has a word
    in its cell, such as OOM. --price or --instance add costs in dollars, --tokens adds hours.
    """
    from accel_bench.cli.output import print_aside, print_report
    from accel_bench_report.tables.expenses import Terms
    from accel_bench_report.tables.pivot import Layout, pivot_experiments
    from accel_bench_report.tables.pivot_view import pivot_report

    rate = hourly_rate(options)
    terms = Terms(rate=rate, tokens=options.tokens, instances=options.instances)
    experiments, baselines = options.read_experiments()
    layout = Layout(
        split_names(options.rows),
        split_names(options.columns),
        split_names(options.values),
        _reference(options.against),
        baselines,
    )
    made = pivot_experiments(experiments, layout, terms)
    print_report(pivot_report(made), options.output)
    if rate and rate.warning:
        print_aside(rate.warning)


def _reference(texts: Names) -> dict[str, JsonValue]:
    """Return the values of the texts `KEY=VALUE` of `--against` by key.

    Raises StoreError for other text, or a key that is given twice.
    """
    from accel_bench.documents.load import parse_value
    from accel_bench.errors import StoreError

    parsed: dict[str, JsonValue] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise StoreError(f"--against {text}: expected KEY=VALUE, such as stack=lora")
        if key.strip() in parsed:
            raise StoreError(f"--against: {key.strip()} is given twice; a cell has one value of it")
        parsed[key.strip()] = parse_value(value, f"--against {key.strip()}")
    return parsed

"""`accel-bench results cost`: dollars for a million tokens, from stored throughput."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from accel_bench.cli.options import takes
from accel_bench_report.rates import PriceOptions, hourly_rate
from accel_bench_report.selection import ExperimentOptions


@dataclass(frozen=True, kw_only=True)
class CostOptions(PriceOptions, ExperimentOptions):
    """Command-line options of `accel-bench results cost`."""

    output: Annotated[
        Literal["table", "json", "csv"], typer.Option("--format", help="How to print.")
    ] = "table"


@takes(CostOptions)
def cost(options: CostOptions) -> None:
    """Print what a million tokens cost with each experiment, at the price of a machine.

    The measured throughput counts real tokens, without padding; starting up, loading, compiling and
    writing checkpoints are not in the cost. Prices older than 90 days are marked as stale.
    """
    from accel_bench.cli.output import print_aside, print_report
    from accel_bench.errors import PriceError
    from accel_bench_report.tables.costs import cost_of_experiments, cost_report

    rate = hourly_rate(options)
    if rate is None:
        raise PriceError("a cost needs --price or --instance, and not both")
    experiments, _ = options.read_experiments()
    document = cost_of_experiments(experiments, rate, options.tokens, options.instances)
    print_report(cost_report(document), options.output)
    if rate.warning:
        print_aside(rate.warning)

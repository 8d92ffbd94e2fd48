"""`accel-bench results convergence`: loss against tokens, time and dollars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from accel_bench.cli.options import takes
from accel_bench.cli.output import AnyFormat
from accel_bench_report.rates import PriceOptions, hourly_rate
from accel_bench_report.selection import SelectionOptions


@dataclass(frozen=True, kw_only=True)
class ConvergenceOptions(PriceOptions, SelectionOptions):
    """Options of `results convergence`."""

    loss: Annotated[
        float | None, typer.Option(help="A loss: what was used until it was reached is printed.")
    ] = None
    curves: Annotated[
        bool, typer.Option("--curves", help="Print all points of the learning curves.")
    ] = False
    output: AnyFormat = "table"


@takes(ConvergenceOptions)
def convergence(options: ConvergenceOptions) -> None:
    """Print how stored experiments learned: loss against steps, tokens, seconds and dollars.

    The loss is that of held-out samples (`data.held_out`, `evaluate`); where there are none, the
    training loss. Seeds and rounds give the intervals. Also the best learning rate of those that
    were tried, how alike seeds end, and whether memory grows with the steps.
    """
    from accel_bench.analysis.aggregate import collect_experiments
    from accel_bench.cli.output import print_aside, print_report
    from accel_bench.errors import AccelBenchError
    from accel_bench_report.learning.convergence import converge
    from accel_bench_report.learning.view import convergence_report

    if options.tokens is not None:
        raise AccelBenchError(
            "--tokens belongs to `accel-bench results cost`; --loss is for this one"
        )
    rate = hourly_rate(options)
    results, baselines = options.read_with_baselines()
    experiments = collect_experiments(results)
    document = converge(experiments, baselines, options.loss, rate, options.instances)
    print_report(convergence_report(document, options.curves), options.output)
    if rate and rate.warning:
        print_aside(rate.warning)

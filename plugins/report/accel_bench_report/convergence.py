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
    """Command-line options of `accel-bench results convergence`."""

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

    The loss is of held-out samples (`data.held_out`, `evaluate`), or else of training. Seeds and
    rounds give the intervals. Further tables show the best of the tried learning rates, the spread
    of final losses over seeds, and whether memory grows with the steps.
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

"""`accel-bench results summary`: stored experiments by batch size, learning rate, hardware, ..."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from accel_bench.cli.options import Names, SelectionOptions, split_names, takes
from accel_bench.cli.output import AnyFormat


@dataclass(frozen=True, kw_only=True)
class SummaryOptions(SelectionOptions):
    """Options of `summary`."""

    group_by: Annotated[
        Names,
        typer.Option(metavar="KEY", help="Settings, `device` or `stack`; else all main ones."),
    ] = None
    output: AnyFormat = "table"


@takes(SummaryOptions)
def summary(options: SummaryOptions) -> None:
    """Summarize stored experiments by batch size, learning rate, optimizer, precision, hardware.

    Values are compared within experiments that differ in that key alone. Without --group-by there
    is a table for each main setting in which the experiments differ.
    """
    from accel_bench.cli.output import print_report
    from accel_bench_report.tables.grouping import summarize_by
    from accel_bench_report.tables.groups_view import groups_by_key_report

    experiments, baselines = options.read_experiments()
    document = summarize_by(experiments, split_names(options.group_by), baselines)
    print_report(groups_by_key_report(document), options.output)

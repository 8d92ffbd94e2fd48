"""`accel-bench history`: one scenario over time, and where it became slower or faster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from accel_bench.cli.options import MeasureOptions, Names, Where, takes


@dataclass(frozen=True, kw_only=True)
class HistoryOptions(MeasureOptions):
    """Options of `history`."""

    scenario: Annotated[
        str, typer.Argument(help="A scenario's name or file; or a --where condition on runs.")
    ]
    only: Annotated[Names, typer.Option(help="Only this stack; repeatable.")] = None
    figure: Annotated[
        str, typer.Option(metavar="NAME", help="A figure, such as peak_memory_bytes; metrics.NAME.")
    ] = "tokens_per_second"
    where: Where = None
    confirm: Annotated[
        bool,
        typer.Option("--confirm", help="Run what the newest step made worse again."),
    ] = False
    rounds: Annotated[int, typer.Option(min=2, help="New rounds with --confirm.")] = 5


@takes(HistoryOptions)
def history(asked: HistoryOptions) -> int:
    """Show a figure of a scenario over time, and the steps in which its level changed.

    A point is what one command measured; a series has one work, stack, sweep point and kind of
    device, whatever the versions. Steps are looked for from 14 sessions on, by a method that takes
    drift, memory and outliers for what they are.

    With --confirm, where the newest step is for the worse, the stack and its baseline are run again
    in fresh processes, side by side. Exits with 1 where that confirms it, else with 0. Options that
    choose how to run are for that.
    """
    from accel_bench_ci.history_request import run_history

    return run_history(asked)

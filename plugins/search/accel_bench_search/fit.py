"""`accel-bench fit`: the largest batch, length or other number that fits in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from accel_bench.cli.options import PlanOptions, takes


@dataclass(frozen=True, kw_only=True)
class FitOptions(PlanOptions):
    """Options of `fit`."""

    scenario: Annotated[
        str, typer.Argument(help="A scenario file, or a shipped scenario's name.")
    ] = "quickstart"
    vary: Annotated[
        str, typer.Option(metavar="KEY", help="The key, such as data.sequence_length.")
    ] = "train.micro_batch_size"
    stack: Annotated[str | None, typer.Option(help="The stack to run; else the baseline.")] = None
    first: Annotated[
        int | None,
        typer.Option("--from", min=1, help="The first value to try; else the scenario's own."),
    ] = None
    most: Annotated[
        int | None, typer.Option("--max", min=1, metavar="N", help="The largest value to try.")
    ] = None
    step: Annotated[
        int, typer.Option(min=1, help="Distance of two values at which the search ends.")
    ] = 1
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds in which the largest that fits is measured.")
    ] = 1
    again: Annotated[
        bool, typer.Option("--again", help="Run values again that are stored already.")
    ] = False


@takes(FitOptions)
def fit(options: FitOptions) -> int:
    """Find the largest value of a key with which a stack fits in memory, by real runs.

    Values are doubled until one runs out of memory, then the gap is halved; nothing above one that
    does not fit is run. Each run is stored, and a value that is stored already is not run again, so
    that the same command goes on where it was stopped. A failure of any other kind ends the search
    with its reason and exit code 1.
    """
    from accel_bench_search.fit_request import run_fit

    return run_fit(options)

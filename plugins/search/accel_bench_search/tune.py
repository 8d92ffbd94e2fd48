"""`accel-bench tune`: the settings of a stack that train fastest, or best in a given time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from accel_bench.cli.options import Names, PlanOptions, takes


@dataclass(frozen=True, kw_only=True)
class TuneOptions(PlanOptions):
    """Options of `tune`."""

    scenario: Annotated[str, typer.Argument(help="A scenario file, or a shipped scenario's name.")]
    vary: Annotated[
        Names,
        typer.Option(
            metavar="KEY=SPEC",
            help="What to tune: KEY=1..64, KEY=1e-5..1e-2:log or KEY=a,b,c; may be repeated.",
        ),
    ] = None
    objective: Annotated[
        Literal["tokens_per_second", "loss"],
        typer.Option(
            help="What to improve: speed at an equivalent loss (where requests arrive at a rate, "
            "the median latency), or the loss."
        ),
    ] = "tokens_per_second"
    until: Annotated[
        str | None,
        typer.Option(
            metavar="UNIT=N",
            help="Where the loss is read: seconds=60, dollars=0.5 or tokens=1e6.",
        ),
    ] = None
    price: Annotated[
        float | None,
        typer.Option(help="US dollars for an hour of all machines, for --until dollars=N."),
    ] = None
    metric_below: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC=V", help="Largest memory of a device: peak_memory_bytes=16GiB."
        ),
    ] = None
    stack: Annotated[str | None, typer.Option(help="The stack to tune; else the baseline.")] = None
    trials: Annotated[int, typer.Option(min=1, help="Trials of the study in all.")] = 20
    check_rounds: Annotated[
        int,
        typer.Option(min=5, help="Rounds, or seeds, in which the winner meets the baseline."),
    ] = 5
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0


@takes(TuneOptions)
def tune(options: TuneOptions) -> int:
    """Search for the settings with which a stack trains fastest, or best in a given time.

    First fit, then fast: what runs out of memory is data, and nothing larger is run. Each trial is
    a real run that is stored, with its verdicts, and the study is kept in the results database, so
    that the same command goes on where it was stopped. The winner is run again, interleaved with
    the baseline, before it is called better.

    Needs Optuna: pip install 'accel-bench[tune]'.
    """
    from accel_bench_search.tune_request import run_tune

    return run_tune(options)

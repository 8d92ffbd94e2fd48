"""`accel-bench estimate`: does it fit, how fast, for how much, before anything is rented."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from accel_bench.cli.options import AnswerOptions, Names, takes


@dataclass(frozen=True, kw_only=True)
class EstimateOptions(AnswerOptions):
    """Options of `estimate`."""

    file: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="A scenario file, or a shipped scenario.")
    ] = "quickstart"
    gpu: Annotated[
        str | None, typer.Option(help="Device of `catalog devices`; else what this machine has.")
    ] = None
    fits: Annotated[
        str | None,
        typer.Option(
            metavar="GPU",
            help="Answer in words whether it fits there; exit code 1 if not.",
        ),
    ] = None
    lengths: Annotated[
        Path | None,
        typer.Option(help="File with the length of each sample: its 95th percentile is taken."),
    ] = None
    tokens: Annotated[
        float | None,
        typer.Option(help="Tokens to train on, with padding, such as 1.2e9: adds hours."),
    ] = None
    only: Annotated[Names, typer.Option(help="Estimate only this stack.")] = None
    plugin: Annotated[Names, typer.Option(help="Add a stack with this plugin; A+B for both.")] = (
        None
    )
    set_: Annotated[
        Names, typer.Option("--set", metavar="KEY=VALUE", help="Change a dotted key.")
    ] = None
    no_limits: Annotated[
        bool,
        typer.Option("--no-limits", help="Leave out the largest batch and the longest context."),
    ] = False


@takes(EstimateOptions)
def estimate(options: EstimateOptions) -> int:
    """Estimate memory, speed and money of a scenario on a device, by simulating its step.

    Nothing is allocated, downloaded or measured: the step runs on tensors without content. What it
    prints is marked as estimated, and is never stored among measured results.
    """
    from accel_bench_advise.estimate_request import run_estimate

    return run_estimate(options)

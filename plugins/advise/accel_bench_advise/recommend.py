"""`accel-bench recommend`: the stack, batch and device to use for a model, with reasons."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from accel_bench.cli.options import AnswerOptions, Names, takes


@dataclass(frozen=True, kw_only=True)
class RecommendOptions(AnswerOptions):
    """Command-line options of `accel-bench recommend`."""

    model: Annotated[
        str | None,
        typer.Option(
            help="Model, as scenarios name it (`catalog models`); else that of --scenario."
        ),
    ] = None
    family: Annotated[
        str | None,
        typer.Option(help="All models of a family that have stored runs, such as text-encoder."),
    ] = None
    mode: Annotated[
        str | None,
        typer.Option(
            help="`train`, or `inference` (stored runs alone).  [default: train; a family: both]"
        ),
    ] = None
    gpu: Annotated[
        str | None,
        typer.Option(
            help="Device of `catalog devices`; else all that have stored runs. Alone, or with "
            "--model all: which models of the catalog fit on it."
        ),
    ] = None
    budget_usd: Annotated[
        float | None, typer.Option("--budget", metavar="USD", help="Dollars that the job may cost.")
    ] = None
    deadline_hours: Annotated[
        float | None,
        typer.Option("--deadline", metavar="HOURS", help="Hours that the job may take."),
    ] = None
    tokens: Annotated[
        float | None, typer.Option(help="Real tokens of the job, without padding, such as 1.2e9.")
    ] = None
    lengths: Annotated[
        Path | None,
        typer.Option(help="File with the length of each sample: chooses the context length."),
    ] = None
    scenario: Annotated[
        str | None,
        typer.Option(help="Scenario to estimate and to run where nothing is stored."),
    ] = None
    where: Annotated[
        Names,
        typer.Option(help="Condition on stored runs, as `results list --where` takes it."),
    ] = None
    at_most: Annotated[
        Names,
        typer.Option(
            "--metric-below",
            metavar="METRIC=VALUE",
            help="Largest value of a metric of the worst run: request_latency_p99=500 (ms).",
        ),
    ] = None
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Read the request from a JSON file (- for stdin)."),
    ] = None
    no_estimates: Annotated[
        bool, typer.Option("--no-estimates", help="Answer from stored runs alone.")
    ] = False


@takes(RecommendOptions)
def recommend(options: RecommendOptions) -> int:
    """Recommend what to train a model with: first what fits, then the fastest at an equal loss.

    The recommendation names the stored runs that support it. Without stored runs it rests on
    estimates, and is marked as estimated. If neither suffices, the command to run is printed, with
    its minutes and dollars. Exit code 1 if nothing can be recommended.
    """
    from accel_bench_advise.recommend_request import run_recommend

    return run_recommend(options)

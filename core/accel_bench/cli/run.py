"""`accel-bench run`: measure the stacks of scenarios and compare them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from accel_bench.cli.options import MeasureOptions, Names, takes


@dataclass(frozen=True, kw_only=True)
class RunOptions(MeasureOptions):
    """Options of `run`."""

    files: Annotated[
        Names,
        typer.Argument(help="Scenario files, folders of them, or names of shipped scenarios."),
    ] = None
    only: Annotated[Names, typer.Option(help="Run only this stack, beside the baseline.")] = None
    tag: Annotated[
        Names, typer.Option(help="Run only the sweep point with this tag; * is any text.")
    ] = None
    reference_point: Annotated[
        str | None,
        typer.Option(metavar="TAG", help="Compare sweep points with this one; else the first."),
    ] = None
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds.")] = None
    seeds: Annotated[
        int | None,
        typer.Option(min=2, help="Train with this many seeds and compare the losses at the end."),
    ] = None
    family: Annotated[
        str | None,
        typer.Option(help="Run each model of the catalog of this family, such as text-encoder."),
    ] = None
    repeat_round: Annotated[
        int | None,
        typer.Option(min=1, help="With --resume: measure a round again that a slow run spoils."),
    ] = None
    no_baseline: Annotated[bool, typer.Option("--no-baseline", help="Leave the baseline out.")] = (
        False
    )
    race: Annotated[
        bool,
        typer.Option("--race", help="Drop stacks that are surely not the best after 5, 10, 20 ..."),
    ] = False
    fail_if_slower: Annotated[
        str | None,
        typer.Option(metavar="FRACTION", help="Exit with 4 for a stack slower by more, 5 if open."),
    ] = None
    section: Annotated[
        Names, typer.Option(help="Show this section of another distribution as well.")
    ] = None
    interleave: Annotated[
        bool,
        typer.Option("--interleave", help="Run each round of all sweep points before the next."),
    ] = False
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Print where the time goes and what each stack is."),
    ] = False


@takes(RunOptions)
def run(options: RunOptions) -> int:
    """Measure acceleration stacks side by side and compare them.

    Without a file it runs the shipped quickstart; with --plugin, only its baseline and that plugin.

    Unless --no-baseline is given, the baseline always runs too.
    """
    from accel_bench.cli.request import run_scenarios

    return run_scenarios(options)

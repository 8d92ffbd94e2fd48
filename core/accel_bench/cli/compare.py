"""`accel-bench compare`: two stored experiments side by side, or a set of runs and a reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from accel_bench.cli import options
from accel_bench.cli.output import AnyFormat

WORD = "A stack's name, SESSION/STACK, or the beginning of an experiment's or a run's id, or '#12'."


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of `compare`."""

    a: Annotated[
        str | None,
        typer.Argument(
            metavar="A",
            help=f"What is compared with. {WORD} With --reference, the runs to compare: a "
            "scenario's name or a --where condition too; else all.",
        ),
    ] = None
    b: Annotated[str | None, typer.Argument(metavar="B", help=f"What is compared. {WORD}")] = None
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="FILE_OR_SELECTION",
            help="Compare a set of runs with this one: an export, a file that `import` reads, a "
            "results folder, or a selection of the stored runs.",
        ),
    ] = None
    alias: Annotated[
        options.Names,
        typer.Option(
            metavar="OLD=NEW", help="Name in the reference and here, or a file of them; repeatable."
        ),
    ] = None
    key: Annotated[
        options.Names,
        typer.Option(metavar="COLUMN", help="What tells rows apart; else scenario, stack, "
                     "model.id, sweep, device, world_size."),
    ] = None  # fmt: skip
    figure: Annotated[
        options.Names,
        typer.Option(metavar="NAME", help="Figure to compare: a column, or metrics.NAME."),
    ] = None
    tolerance: Annotated[
        str, typer.Option(metavar="FRACTION", help="Change that is allowed: 5% or 0.05.")
    ] = "5%"
    results: options.Results = options.DEFAULT_RESULTS
    results_b: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where B is kept, if that is elsewhere.")
    ] = None
    output: AnyFormat = "table"


@options.takes(CompareOptions)
def compare(asked: CompareOptions) -> int:
    """Compare stored results: B against A, or a set of runs with --reference.

    Runs of the same round of the same session are pairs, and pairs alone get a verdict: a stored
    reference is history, not a gate. Where more differs than the stacks declare, the differing
    fields are printed, the two are not comparable, and there is no verdict either.

    A bare stack's name means the newest run of the program that measured both.

    With --reference, rows with the same key are compared figure by figure: better, worse, newly
    failing or passing, new, missing, standing out from the other rows. Exits with 1 where anything
    looks worse or fails newly, else with 0.
    """
    from accel_bench.cli.compare_request import compare_pairs, compare_reference

    return compare_pairs(asked) if asked.reference is None else compare_reference(asked)

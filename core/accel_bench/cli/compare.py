"""`accel-bench compare`: two stored experiments side by side."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated

import typer

from accel_bench.cli import options
from accel_bench.cli.output import AnyFormat

WORD = "A stack's name, SESSION/STACK, or the beginning of an experiment's or a run's id, or '#12'."


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of `compare`."""

    a: Annotated[str, typer.Argument(metavar="A", help=f"What is compared with. {WORD}")]
    b: Annotated[str, typer.Argument(metavar="B", help=f"What is compared. {WORD}")]
    results: options.ResultsOption = options.DEFAULT_RESULTS
    results_b: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where B is kept, if that is elsewhere.")
    ] = None
    compare: options.CompareOption = None
    output: AnyFormat = "table"


@options.takes(CompareOptions)
def compare(asked: CompareOptions) -> int:
    """Compare stored results: B against A.

    Runs of the same round of the same session are pairs, and pairs alone get a verdict. If more
    differs than the stacks declare, the differing fields are printed. The two are then not
    comparable, and get no verdict.

    A bare stack's name means the newest run of the program that measured both. A whole set of runs
    is compared with an earlier one by `accel-bench results regressions`.
    """
    from accel_bench.analysis.compare import compare_stored
    from accel_bench.cli.output import print_report
    from accel_bench.report.views.compare import compare_report
    from accel_bench.runner.interrupted import open_results
    from accel_bench.store.selection import select_pairs

    with ExitStack() as stack:
        store = stack.enter_context(open_results(asked.results))
        elsewhere = asked.results_b
        other = stack.enter_context(open_results(elsewhere)) if elsewhere else None
        selected = select_pairs(asked.a, asked.b, store, other)
    compared = [compare_stored(left, right, asked.compare) for left, right in selected]
    print_report(compare_report(compared), asked.output)
    missing = (side.quantity.obstacle for pair in compared for side in (pair.a, pair.b))
    return 1 if asked.compare is not None and any(missing) else 0

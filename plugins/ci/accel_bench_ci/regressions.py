"""`accel-bench results regressions`: what looks worse than in a reference set of runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from accel_bench.analysis.wording import count
from accel_bench.cli import options
from accel_bench.cli.output import AnyFormat, print_report
from accel_bench.documents.load import load_file
from accel_bench.errors import ScenarioError, StoreError
from accel_bench.plugins.doors import find_entry
from accel_bench.result import Result
from accel_bench.runner.unfinished import open_results
from accel_bench.store.database import Store
from accel_bench.store.selection import select_runs
from accel_bench_ci.figures import figure_named
from accel_bench_ci.reference import DEFAULT_FIGURES, Rule, compare_with_reference
from accel_bench_ci.reference_keys import DEFAULT_KEYS
from accel_bench_ci.reference_view import reference_report

READERS = "accel_bench.readers"
"""Group of entry points; `runs` is a function that returns the results in a file."""


@dataclass(frozen=True, kw_only=True)
class RegressionOptions:
    """Options of `results regressions`."""

    reference: Annotated[
        str,
        typer.Argument(
            metavar="REFERENCE",
            help="An export, a file that `results import` reads, a results folder, or a selection "
            "of the stored runs.",
        ),
    ]
    selection: Annotated[
        str | None,
        typer.Argument(
            metavar="RUNS",
            help="Runs to compare with it: a session, stack, scenario or condition; else all.",
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
    output: AnyFormat = "table"


@options.takes(RegressionOptions)
def regressions(asked: RegressionOptions) -> int:
    """Compare a set of stored runs with a reference, row by row and figure by figure.

    Each row is better, worse, newly failing or passing, new, missing, or stands out from the other
    rows. Runs of two sets are no pairs: what looks worse is confirmed by `gate`, or by `history
    --confirm`. Exits with 1 where anything looks worse or fails newly, else with 0.
    """
    tolerance = options.parse_fraction(asked.tolerance, "--tolerance")
    aliases = parse_aliases(asked.alias or ())
    reference, current = _both_sides(asked)
    figures = [figure_named(one, current) for one in asked.figure or DEFAULT_FIGURES]
    rule = Rule(figures, asked.key or DEFAULT_KEYS, aliases, tolerance)
    found = compare_with_reference(asked.reference, reference, current, rule)
    print_report(reference_report(found), asked.output)
    return found.exit_code


def _both_sides(asked: RegressionOptions) -> tuple[list[Result], list[Result]]:
    """Return the runs of the reference, and those to compare. Raises StoreError for the same."""
    with open_results(asked.results) as store:
        current = select_runs(store, asked.selection or "")
        reference = read_reference(asked.reference, store)
    known = {run.run_id for run in reference}
    if {run.run_id for run in current} == known:
        raise StoreError(f"both sets are the same {count(len(current), 'run')}; select others")
    if not asked.selection:  # the reference is no part of what is compared with it
        current = [run for run in current if run.run_id not in known]
    return reference, current


def read_reference(text: str, store: Store) -> list[Result]:
    """Return the runs of a file, of another results folder, or of a selection of the store."""
    path = Path(text)
    if path.is_file():
        entry = find_entry(READERS, "reader", "runs")
        read = entry.load()
        with entry.blamed():
            return list(read(path))
    if path.is_dir() or "://" in text:
        with open_results(text) as other:
            return select_runs(other)
    return select_runs(store, text)


def parse_aliases(texts: Sequence[str]) -> dict[str, str]:
    """Return new names by old ones, of `OLD=NEW` and of files. Raises ScenarioError."""
    found: dict[str, str] = {}
    for text in texts:
        for old, new in _aliases_of(text):
            if found.setdefault(old, new) != new:
                raise ScenarioError(f"--alias: {old!r} means both {found[old]!r} and {new!r}")
    return found


def _aliases_of(text: str) -> Iterable[tuple[str, str]]:
    old, sign, new = text.partition("=")
    if sign and old and new:
        return [(old, new)]
    if sign or not Path(text).is_file():
        raise ScenarioError(f"--alias {text!r} is neither OLD=NEW nor a file of `old: new` lines")
    document = load_file(Path(text))
    for key, value in document.data.items():
        if not isinstance(value, str):
            raise ScenarioError(f"{document.where((key,))}: {key}: the new name must be a text")
    return list(document.data.items())

"""`accel-bench results regressions`: comparison of stored runs with a reference set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Annotated

import typer

from accel_bench.analysis.wording import count, figure_text, percent, ratio_interval, settings
from accel_bench.cli import options
from accel_bench.cli.output import AnyFormat, print_report
from accel_bench.documents.load import load_file
from accel_bench.errors import ScenarioError, StoreError
from accel_bench.plugins.doors import find_entry
from accel_bench.report.table import Column, Line, Report, Section, Table, columns_of, reader
from accel_bench.report.views.compare import differences_table, setting_text
from accel_bench.result import Result
from accel_bench.runner.interrupted import open_results
from accel_bench.store.database import Store
from accel_bench.store.selection import select_runs
from accel_bench_ci.figures import figure_named
from accel_bench_ci.reference import (
    DEFAULT_FIGURES,
    ComparisonRule,
    ReferenceComparison,
    ReferenceFigure,
    ReferenceRow,
    compare_with_reference,
)
from accel_bench_ci.reference_keys import DEFAULT_KEYS

READERS = "accel_bench.readers"
"""Entry-point group of file readers; its entry `runs` is a function that returns a file's
results."""


@dataclass(frozen=True, kw_only=True)
class RegressionOptions:
    """Command-line options of `accel-bench results regressions`."""

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
    results: options.ResultsOption = options.DEFAULT_RESULTS
    output: AnyFormat = "table"


@options.takes(RegressionOptions)
def regressions(asked: RegressionOptions) -> int:
    """Compare a set of stored runs with a reference, row by row and figure by figure.

    Each row is better, worse, newly failing or passing, new, missing, or an outlier among the rows.
    Runs of two sets are not paired: `gate` or `history --confirm` must confirm an apparent
    worsening. Exits with 1 if anything looks worse or fails newly, else with 0.
    """
    tolerance = options.parse_fraction(asked.tolerance, "--tolerance")
    aliases = parse_aliases(asked.alias or ())
    reference, current = _both_sides(asked)
    figures = [figure_named(name, current) for name in asked.figure or DEFAULT_FIGURES]
    rule = ComparisonRule(figures, asked.key or DEFAULT_KEYS, aliases, tolerance)
    compared = compare_with_reference(asked.reference, reference, current, rule)
    print_report(reference_report(compared), asked.output)
    return compared.exit_code


def _both_sides(asked: RegressionOptions) -> tuple[list[Result], list[Result]]:
    """Return the reference's runs and the current runs. Raises StoreError if both sets are
    equal."""
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
    """Return the runs of a reference: of a file, of another results folder, or of a selection in
    `store`.

    `text` is a path, a folder's URL, or a selection as `results` commands take it.
    """
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
    """Return new names by old names, from `OLD=NEW` texts and names of files with such pairs.

    Raises ScenarioError for other texts, and if an old name has two new ones.
    """
    aliases: dict[str, str] = {}
    for text in texts:
        for old, new in _aliases_of(text):
            if aliases.setdefault(old, new) != new:
                raise ScenarioError(f"--alias: {old!r} means both {aliases[old]!r} and {new!r}")
    return aliases


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


MOST_DIFFERENCES = 20
"""Maximum number of differences in the printed table; the JSON document has all."""


def reference_report(found: ReferenceComparison) -> Report:
    """Return a printable report: the conclusion, a line for each figure of each row, the
    differences."""
    lines = [line for row in found.rows for line in _lines(row)]
    tables = [Table(COLUMNS, lines)]
    differing = [("differs in every row", found.differing)]
    differing += [(f"differs: {_key(row)}", row.differing) for row in found.rows]
    for title, facts in filter(itemgetter(1), differing):
        table = differences_table((title, "reference", "current"), facts[:MOST_DIFFERENCES])
        more = len(facts) - len(table.rows)
        tables.append(replace(table, notes=[f"and {more} more"] if more else []))
    section = Section(
        title=f"against {found.reference} (exit {found.exit_code})",
        headline=_answer(found),
        tables=tables,
        notes=list(_notes(found)),
    )
    return Report([section], found, Table(FLAT, lines))


def _lines(row: ReferenceRow) -> Iterator[Line]:
    """Yield a line for each figure of a row, or a single line for a row without figures."""
    yield from (Line(row=row, figure=figure) for figure in row.figures or (None,))


def _verdict(line: Line) -> str:
    """Return the words of the verdict column: the verdict on a line's figure, or else its row's
    state."""
    if line.figure is None:
        return str(line.row.state)
    # Runs of two sets are no pairs: what they show stays to be confirmed.
    known = line.figure.verdict
    word = f"looks {known}" if known in ("better", "worse") else known
    return f"{word}, outlier" if line.figure.outlier else str(word)


def _answer(found: ReferenceComparison) -> str:
    """Return the concluding sentence: the number of rows that look worse, and of rows in each
    state."""
    states = Counter(row.state for row in found.rows)
    rows = ", ".join(f"{count} {state}" for state, count in states.items())
    if untold := sum(any(map(_untold, row.figures)) for row in found.rows):
        rows += f" (of {untold} it cannot be told)"
    if not found.worse:
        allowed = percent(found.tolerance)
        return f"nothing looks worse than the reference by more than {allowed}: {rows}."
    return (
        f"{found.worse} of {len(found.rows)} rows look worse than the reference: {rows}; "
        "unconfirmed, since runs of two sets are no pairs."
    )


def _untold(figure: ReferenceFigure) -> bool:
    """Return whether the load of requests prevents a verdict on a figure."""
    return bool(figure.reason) and figure.verdict == "not tested"


def _notes(found: ReferenceComparison) -> Iterator[str]:
    for row in found.rows:
        if row.worse and row.reasons:
            yield f"{_key(row)}: {'; '.join(row.reasons)}"
        if row.state == "newly saturated":
            load = next((figure.reason for figure in row.figures if figure.reason), "saturated")
            yield f"{_key(row)}: newly {load}"
            continue
        refused = dict.fromkeys(figure.reason for figure in row.figures if _untold(figure))
        yield from (f"{_key(row)}: not tested: {reason}" for reason in refused)
    if any(row.imported for row in found.rows):
        yield "imported: another program measured one side of these rows"
    figures = [figure for row in found.rows for figure in row.figures]
    if any(figure.verdict == "inconclusive" for figure in figures):
        yield (
            "inconclusive: a single run on a side, or a change that chance could make "
            "(5 % over all rows and figures)"
        )
    if found.aliases:
        yield f"aliases: {settings(found.aliases)}"
    if found.worse:
        yield (
            "to confirm a slow-down: `accel-bench gate SCENARIO --stack STACK`, or `accel-bench "
            "history SCENARIO --confirm`"
        )


def _key(row: ReferenceRow) -> str:
    parts = {key: value for key, value in row.key.items() if value not in ({}, "")}
    mark = " (imported)" if row.imported else ""
    texts = (settings(v) if isinstance(v, dict) else setting_text(v) for v in parts.values())
    return ", ".join(texts) + mark


COLUMNS = (
    Column("row", lambda line: _key(line.row), kind="name"),
    Column("figure", reader("figure.name")),
    Column("reference", reader("figure.reference"), form=figure_text, kind="number"),
    Column("current", reader("figure.current"), form=figure_text, kind="number"),
    Column("ratio", reader("figure.ratio"), unit="[95 % interval]", form=ratio_interval,
           kind="number"),
    Column("better", reader("figure.better"), kind="word"),
    Column("verdict", _verdict, kind="word"),
    Column("runs", lambda line: f"{len(line.row.reference_runs)}, {len(line.row.current_runs)}",
           kind="word"),
)  # fmt: skip
"""Columns of the printed table of `results regressions`."""

FLAT = (
    *columns_of(ReferenceRow, "row"),
    *columns_of(ReferenceFigure, "figure", without="reason"),
    *columns_of(ReferenceFigure, "figure", "figure_{}", "reason"),
    Column("differing", lambda line: [difference.key for difference in line.row.differing]),
)
"""CSV columns of `results regressions`."""

"""A set of runs against a reference: what `regressions` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from accel_bench.analysis.checks.comparability import Difference
from accel_bench.analysis.wording import percent, plain_value, ratio_interval, settings
from accel_bench.report.table import (
    EMPTY,
    Column,
    Report,
    Section,
    Table,
    interval_paths,
    listed,
    paths,
    reader,
)
from accel_bench_ci.figures import figure_text
from accel_bench_ci.reference import (
    ReferenceComparison,
    ReferenceFigure,
    ReferenceRow,
)

MOST_DIFFERENCES = 20
"""Differences that are printed for people; the JSON document has all."""


class Line(NamedTuple):
    """One figure of one row; of a row without figures the row alone."""

    row: ReferenceRow
    figure: ReferenceFigure | None

    @property
    def verdict(self) -> str:
        """Return the word of the row, or of its figure."""
        if self.figure is None:
            return self.row.state
        # Runs of two sets are no pairs: what they show stays to be confirmed.
        known = self.figure.verdict
        word = f"looks {known}" if known in ("better", "worse") else known
        return word + (", outlier" if self.figure.outlier else "")


def reference_report(found: ReferenceComparison) -> Report:
    """Return the answer, a line for each figure of each row, and what differs."""
    lines = [line for row in found.rows for line in _lines(row)]
    tables = [Table(COLUMNS, lines)]
    for title, differing in _differences(found):
        values = [(d.key, _value(d.a), _value(d.b)) for d in differing[:MOST_DIFFERENCES]]
        notes = [f"and {len(differing) - len(values)} more"] if differing[len(values) :] else []
        tables.append(listed((title, "reference", "current"), values))
        tables[-1] = Table(tables[-1].columns, tables[-1].rows, notes=notes)
    section = Section(
        title=f"against {found.reference} (exit {found.exit_code})",
        answer=_answer(found),
        tables=tables,
        notes=list(_notes(found)),
    )
    return Report([section], found, Table(FLAT, lines))


def _lines(row: ReferenceRow) -> Iterator[Line]:
    yield from (Line(row, one) for one in row.figures)
    if not row.figures:
        yield Line(row, None)


def _answer(found: ReferenceComparison) -> str:
    """Return what looks worse, and how many rows there are of each kind."""
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
    """Return whether the load allows no verdict on a figure."""
    return bool(figure.reason) and figure.verdict == "unknown"


def _reason_of_load(row: ReferenceRow) -> str:
    """Return what is known of requests that pile up."""
    return next((one.reason for one in row.figures if one.reason), "saturated")


def _notes(found: ReferenceComparison) -> Iterator[str]:
    for row in found.rows:
        if row.worse and row.reasons:
            yield f"{_key(row)}: {'; '.join(row.reasons)}"
        if row.state == "newly saturated":
            yield f"{_key(row)}: newly {_reason_of_load(row)}"
            continue
        refused = dict.fromkeys(one.reason for one in row.figures if _untold(one))
        yield from (f"{_key(row)}: cannot tell: {reason}" for reason in refused)
    if any(row.imported for row in found.rows):
        yield "imported: another program measured one side of these rows"
    figures = [one for row in found.rows for one in row.figures]
    if any(one.verdict == "inconclusive" for one in figures):
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


def _differences(
    found: ReferenceComparison,
) -> Iterator[tuple[str, Sequence[Difference]]]:
    if found.differing:
        yield "differs in every row", found.differing
    for row in found.rows:
        if row.differing:
            yield f"differs: {_key(row)}", row.differing


def _key(row: ReferenceRow) -> str:
    parts = {key: value for key, value in row.key.items() if value not in ({}, "")}
    mark = " (imported)" if row.imported else ""
    return ", ".join(_value(value) for value in parts.values()) + mark


def _value(value: Any) -> str:
    return (
        EMPTY
        if value is None
        else settings(value)
        if isinstance(value, dict)
        else plain_value(value)
    )


COLUMNS = (
    Column("row", lambda line: _key(line.row), kind="name"),
    Column("figure", reader("figure.name")),
    Column("reference", reader("figure.reference"), form=figure_text, kind="number"),
    Column("current", reader("figure.current"), form=figure_text, kind="number"),
    Column("ratio", reader("figure.ratio"), unit="[95 % interval]", form=ratio_interval,
           kind="number"),
    Column("better", reader("figure.better"), kind="word"),
    Column("verdict", reader("verdict"), kind="word"),
    Column("runs", lambda line: f"{len(line.row.reference_runs)}, {len(line.row.current_runs)}",
           kind="word"),
)  # fmt: skip
"""Columns for people."""

FLAT = (
    *paths("row", "key state reference_status current_status imported"),
    *paths("figure", "name unit better reference current verdict outlier"),
    *paths("figure", "reason", "figure_{}"),
    *interval_paths("figure", "ratio"),
    *paths("row", "reasons reference_runs current_runs"),
    Column("differing", lambda line: [one.key for one in line.row.differing]),
)
"""Columns of the CSV."""

"""The ledger of a step, and the difference of two: what `count` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from accel_bench.analysis.wording import count, join_names
from accel_bench.report.table import Column, Report, Section, Table, paths, reader
from accel_bench_profile.ledger.difference import Change, LedgerDifference, totals
from accel_bench_profile.ledger.places import (
    FIGURES,
    PlaceChange,
    amount,
    line_of,
    signed_amount,
)
from accel_bench_profile.ledger.schema import Entry, Figure, Ledger

NAMES: dict[Figure, str] = {figure: figure.replace("_", " ") for figure in FIGURES}
MOST_OPERATIONS = 4
"""Operations of a line that are named."""

MOST_LINES = 12
"""Lines that are shown."""

WIDTH = 120
"""Columns of the page where the output is no terminal: lines of code are wrapped."""


def ledger_report(ledger: Ledger) -> Report:
    """Return the sums of a step, its operations by kind, and every entry for programs."""
    found = totals(ledger)
    sums = [(figure, found[figure, "", ""]) for figure in FIGURES]
    kinds = Counter({key[1:]: number for key, number in found.items() if key[1]})
    ranks = "one rank" if ledger.ranks == 1 else f"{ledger.ranks} ranks together"
    section = Section(
        title=f"{ledger.scenario}: {ledger.stack}",
        tables=[
            Table(SUMS, sums, title=f"one step of {ranks}"),
            Table(KINDS, kinds.most_common(), title="operations by kind"),
        ],
        notes=ledger.left_out,
    )
    return Report([section], ledger, Table(ENTRIES, ledger.entries))


def difference_report(found: LedgerDifference) -> Report:
    """Return what rose, where, and what fell."""
    left = len(found.places) - MOST_LINES
    more = (f"and {count(left, 'line')} more: --format json has them all",) if left > 0 else ()
    tables = [
        Table(CHANGES, found.rose, title="what rose"),
        Table(PLACES, found.places[:MOST_LINES], title="where", notes=more),
        Table(CHANGES, found.fell, title="what fell"),
    ]
    before, after = found.before.stack, found.after.stack
    section = Section(
        title=f"{found.after.scenario}: {before} (reference) -> {after} (counted)",
        answer=found.answer,
        tables=[table for table in tables if table.rows],
        notes=(*(one.sentence for one in found.shifts), *found.notes),
    )
    return Report([section], found, Table(FLAT, [*found.rose, *found.fell]), WIDTH)


def _change_name(change: Change) -> str:
    return " ".join(filter(None, (NAMES[change.figure], change.kind, change.dtype)))


def _figures(place: PlaceChange) -> tuple[str, ...]:
    return tuple(
        signed_amount(figure, number)
        + ("" if figure == "flops" else f" {NAMES[figure].removesuffix(' bytes')}")
        for figure, number in place.figures.items()
    )


SUMS = (
    Column("figure", lambda row: NAMES[row[0]], kind="name"),
    Column("step", lambda row: amount(*row), "in a step", kind="number"),
)
KINDS = (
    Column("kind", lambda row: " ".join(filter(None, row[0])), kind="name"),
    Column("operations", lambda row: row[1], form="{:,}".format, kind="number"),
)
CHANGES = (
    Column("figure", _change_name, kind="name"),
    Column("before", lambda row: amount(row.figure, row.before), kind="number"),
    Column("after", lambda row: amount(row.figure, row.after), kind="number"),
    Column("difference", lambda row: signed_amount(row.figure, row.change), kind="number"),
)
PLACES = (
    Column("line", line_of, kind="word"),
    Column("module", lambda row: ", ".join(filter(None, row.modules)) or None),
    Column("code", reader("code")),
    Column("operations", lambda row: join_names(row.operations, MOST_OPERATIONS)),
    Column("difference", _figures, form=lambda parts: parts),
)

FLAT = (
    *paths("", "figure kind dtype before after"),
    Column("difference", reader("change")),
)
"""Columns of a difference's CSV."""


def _figure(figure: Figure) -> Callable[[Entry], Any]:
    return lambda entry: entry.figures.get(figure, 0)


ENTRIES = (
    *paths("site", "phase module file line function code"),
    *paths("", "operation kind dtype"),
    *(Column(figure, _figure(figure)) for figure in FIGURES),
)
"""Columns of a ledger's CSV."""

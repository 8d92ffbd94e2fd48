"""Checked claims: what `results claims` prints."""

from __future__ import annotations

from collections import Counter

from accel_bench.analysis.wording import percent
from accel_bench.report.table import Column, Report, Section, Table, interval_paths, paths, reader
from accel_bench_ci.claims import ClaimsReport

MOST_EVIDENCE = 3
"""Ids of runs that are printed for people; JSON and CSV have all."""


def claims_report(found: ClaimsReport) -> Report:
    """Return how many hold, and a row for each claim."""
    counts = Counter(one.verdict for one in found.claims)
    answer = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    section = Section(
        title=f"{found.file} (exit {found.exit_code})",
        answer=f"{len(found.claims)} claims: {answer}. Each claim on its own is wrongly said to "
        f"hold in at most {percent(found.error_rate)} of cases.",
        tables=[Table(COLUMNS, found.claims)],
    )
    return Report([section], found, Table(FLAT, found.claims))


def _evidence(ids: tuple[str, ...]) -> str:
    more = f" and {len(ids) - MOST_EVIDENCE} more" if len(ids) > MOST_EVIDENCE else ""
    return ", ".join(ids[:MOST_EVIDENCE]) + more


COLUMNS = (
    Column("claim", reader("text")),
    Column("verdict", reader("verdict"), kind="word"),
    Column("value [95 % interval]", reader("reason")),
    Column("evidence", reader("evidence"), form=_evidence),
)
"""Columns for people."""

FLAT = (
    *paths("", "text verdict reason rounds"),
    *interval_paths("value", "value"),
    *paths("claim", "stack baseline metric at_least at_most between where"),
    *paths("", "evidence"),
)
"""Columns of the CSV."""

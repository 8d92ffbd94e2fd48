"""`accel-bench results check`: corrupt rows, and rows whose values contradict one another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from accel_bench.analysis.checks.audit import Broken, audit
from accel_bench.analysis.schema import Document
from accel_bench.analysis.wording import count
from accel_bench.cli import options
from accel_bench.cli.output import OutputFormat, print_report
from accel_bench.report.table import Report, Section, Table, paths
from accel_bench.runner.interrupted import open_results
from accel_bench.store.database import ListedRun, Store
from accel_bench.store.fields import FIGURES_VERSION
from accel_bench.store.queries import COMPLETED
from accel_bench.store.schema import RUNS

CHECKSUM = "checksum"
"""Name of the invariant that a corrupt row breaks."""

COLUMNS = "run_id experiment_id stack invariant figures"
"""Columns of the table; the JSON document has more."""


class BrokenInvariant(Broken):
    """An invariant that a stored row breaks: its name in `analysis.checks.audit`, or `checksum`."""

    run_id: str
    """Unique id of the run."""

    experiment_id: str
    """Hash that identifies the experiment."""

    session: str
    """Id of the run's session."""

    stack: str
    """Name of the stack."""


class AuditReport(Document):
    """The document of `accel-bench results check`."""

    rows: int
    """Number of stored rows."""

    audited: int
    """Number of audited runs: completed, measured here, and readable by this version."""

    broken: tuple[BrokenInvariant, ...] = ()
    """Broken invariants of all rows, in the order in which the rows were stored."""


def check(
    folder: Annotated[
        str | None, typer.Argument(metavar="RESULTS", help="The results folder, as --results.")
    ] = None,
    results: options.ResultsOption = options.DEFAULT_RESULTS,
    output: OutputFormat = "table",
) -> None:
    """Check invariants in every stored row and list those that are broken.

    Tokens against sequence length, samples against steps, rates against time, device clock against
    wall clock, a rank's clock against the parent's, phases against steps, kinds of memory against
    one another, devices against the requested ones, and every row's checksum. Exits with 1 when
    anything is broken.
    """
    with open_results(folder or results) as store:
        report = audit_store(store)
    rows = len({invariant.run_id for invariant in report.broken})
    result = f"{rows} with broken invariants" if rows else "no invariant is broken"
    section = Section(
        title=f"{count(report.rows, 'row')}, {report.audited} completed: {result}",
        tables=[Table(paths("", COLUMNS), report.broken)] if rows else [],
    )
    print_report(Report([section], report), output)
    raise typer.Exit(1 if rows else 0)


def audit_store(store: Store) -> AuditReport:
    """Return the audit of every row of an open store. Raises StoreError if it cannot be read.

    A row stores the invariants that an earlier audit found broken, covered by the row's checksum.
    Rows that an older or newer version of the checks audited are audited again.
    """
    rows = store.rows()
    stale = store.results(RUNS.c.figures_version != FIGURES_VERSION)
    again = {result.run_id: audit(result) for result in stale}
    broken = [invariant for row in rows for invariant in _broken(row, again.get(row.run_id))]
    audited = sum(
        row.status in COMPLETED
        and not row.imported
        and (row.broken is not None or row.run_id in again)  # others cannot be read
        for row in rows
    )
    return AuditReport(rows=len(rows), audited=audited, broken=tuple(broken))


def _broken(row: ListedRun, again: list[Broken] | None) -> Iterator[BrokenInvariant]:
    """Yield the broken invariants of a row; of a corrupt row, only that its checksum is wrong.

    `again` are the broken invariants found now if the row was audited again, else None.
    """
    if row.corrupt:
        again = [Broken(invariant=CHECKSUM, figures=row.problem)]
    elif again is None:
        again = [Broken(invariant=name, figures=figures) for name, figures in row.broken or ()]
    columns = ("run_id", "experiment_id", "session", "stack")
    of_row = {name: getattr(row, name) for name in columns}
    yield from (BrokenInvariant(**dict(invariant), **of_row) for invariant in again)

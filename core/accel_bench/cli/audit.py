"""`accel-bench results check`: rows whose figures disagree with one another."""

from __future__ import annotations

from typing import Annotated

import typer

from accel_bench.cli import options
from accel_bench.cli.output import Format, print_report

COLUMNS = "run_id experiment_id stack invariant figures"
"""Columns of the table; the JSON document has more."""


def audit(
    folder: Annotated[
        str | None, typer.Argument(metavar="RESULTS", help="The results folder, as --results.")
    ] = None,
    results: options.Results = options.DEFAULT_RESULTS,
    output: Format = "table",
) -> None:
    """Check invariants in every stored row and list those that are broken.

    Tokens against sequence length, samples against steps, rates against time, device clock against
    wall clock, that of a rank against that of the parent, phases against steps, kinds of memory
    against one another, devices against those requested, and every row's checksum. Exits with 1
    when anything is broken.
    """
    from accel_bench.analysis.wording import count
    from accel_bench.report.table import Report, Section, Table, paths
    from accel_bench.runner.unfinished import open_results
    from accel_bench.store.audit import audit_store

    with open_results(folder or results) as store:
        report = audit_store(store)
    rows = len({one.run_id for one in report.broken})
    found = f"{rows} with broken invariants" if rows else "no invariant is broken"
    section = Section(
        title=f"{count(report.rows, 'row')}, {report.audited} completed: {found}",
        tables=[Table(paths("", COLUMNS), report.broken)] if rows else [],
    )
    print_report(Report([section], report), output)
    raise typer.Exit(1 if rows else 0)

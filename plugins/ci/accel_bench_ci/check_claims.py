"""`accel-bench results claims`: check claims about stacks against stored runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from accel_bench.analysis.wording import percent
from accel_bench.cli import options
from accel_bench.cli.output import AnyFormat, print_report
from accel_bench.documents.load import SUFFIXES, ParsedFile, load_file
from accel_bench.documents.validate import validate
from accel_bench.errors import ScenarioError, StoreError, StoreUnavailableError
from accel_bench.report.table import Column, Report, Section, Table, columns_of, reader
from accel_bench.runner.interrupted import open_results
from accel_bench.store.queries import condition_of
from accel_bench.store.schema import RUNS
from accel_bench_ci.claims import (
    CheckedClaim,
    Claim,
    ClaimsFile,
    ClaimsReport,
    check_claim,
    check_metric,
    report_of,
)


def check_claims(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of claims.")],
    results: options.ResultsOption = options.DEFAULT_RESULTS,
    output: AnyFormat = "table",
) -> None:
    """Check each claim of a file: it holds, does not hold, or is inconclusive.

    A claim names a stack, a baseline, a metric, limits (at_least, at_most or between), and
    conditions on runs (where). Exits with 0 when all hold, 1 when one does not, 5 when one is
    inconclusive.
    """
    if file.suffix not in SUFFIXES:
        raise ScenarioError(f"{file}: a file of claims ends in {', '.join(SUFFIXES)}")
    document = load_file(file)
    claims = validate(ClaimsFile, document.data, document.where, ScenarioError).claims
    checked = []
    with open_results(results) as store:
        for number, claim in enumerate(claims):
            with _placed(document, number, "where"):
                chosen = [condition_of(store, claim.where)] if claim.where is not None else []
            stacks = [name for name in (claim.stack, claim.baseline) if name is not None]
            runs = store.results(RUNS.c.stack.in_(stacks), *chosen)
            with _placed(document, number, "metric"):
                check_metric(claim, runs)
            checked.append(check_claim(claim, runs))
    report = report_of(str(file), checked)
    print_report(claims_report(report), output)
    raise typer.Exit(report.exit_code)


@contextmanager
def _placed(document: ParsedFile, number: int, key: str) -> Iterator[None]:
    """Turn a StoreError in the `with` block into a ScenarioError with a line of the claims file.

    The line is that of `key` in claim number `number`. StoreUnavailableError passes unchanged.
    """
    try:
        yield
    except StoreUnavailableError:
        raise  # nothing in the file is wrong
    except StoreError as error:
        place = document.where(("claims", number, key))
        raise ScenarioError(f"{place}: claims.{number}.{key}: {error}") from None


MOST_EVIDENCE = 3
"""Maximum number of run ids in a cell of the printed table; JSON and CSV have all ids."""


def claims_report(found: ClaimsReport) -> Report:
    """Return a printable report with the number of claims by verdict, and a row for each claim."""
    counts = Counter(claim.verdict for claim in found.claims)
    words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    section = Section(
        title=f"{found.file} (exit {found.exit_code})",
        headline=f"{len(found.claims)} claims: {words}. Each claim on its own is wrongly said to "
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
"""Columns of the printed table of `results claims`."""

FLAT = (
    *columns_of(CheckedClaim, without="claim"),
    *columns_of(Claim, "claim", without="name same_training"),
)
"""CSV columns of `results claims`."""

"""`accel-bench results export`: write stored runs as files for accel-bench and other programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy import ColumnElement

from accel_bench import interchange
from accel_bench.cli import options
from accel_bench.cli.output import print_aside, print_text
from accel_bench.documents.escaping import plain
from accel_bench.documents.files import write_atomically
from accel_bench.errors import StoreError, did_you_mean
from accel_bench.report.formats import render_list
from accel_bench.result import Result
from accel_bench.runner.interrupted import open_results
from accel_bench.store.database import Store
from accel_bench.store.queries import condition_of
from accel_bench.store.schema import RUNS
from accel_bench_interop.row_files import export_lines, write_parquet

OWN_FORMATS = ("json", "csv", "parquet")
"""Export formats of accel-bench itself."""


def _formats() -> list[str]:
    """Return the names of output formats: accel-bench's own, then formats of installed plugins."""
    return [*OWN_FORMATS, *interchange.format_names()]


def export_results(
    identifiers: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Runs, experiments or sessions. Without any, all."),
    ] = None,
    results: options.ResultsOption = options.DEFAULT_RESULTS,
    output_format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="NAME",
            help="`json`: everything; `csv`: a row for each run; `parquet`: both; or a format of "
            "another program.",
            autocompletion=_formats,
        ),
    ] = "json",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Else it is printed.")
    ] = None,
    where: Annotated[str | None, typer.Option(metavar="CONDITION", help=options.WHERE)] = None,
) -> None:
    """Write stored runs to a file or to the terminal.

    Runs are selected by id and by a condition; without either, all runs are written.

    `accel-bench results import` reads JSON and Parquet into another results folder.
    """
    if output_format not in (known := _formats()):
        near = did_you_mean(output_format, known)
        raise StoreError(f"--format: no format is called {output_format!r}{near}")
    if output_format == "parquet" and output is None:
        raise StoreError("Parquet is written to a file: --output FILE")
    corrupt: list[str] = []
    with open_results(results) as store:
        conditions = [condition_of(store, where)] if where is not None else []
        if identifiers:
            named = {run_id for name in identifiers for run_id in store.run_ids(name)}
            conditions.append(RUNS.c.run_id.in_(named))
        _write(_intact(store, conditions, corrupt), output_format, output)
    if corrupt:
        print_aside(plain(f"left out as corrupt: {', '.join(corrupt)}"))


def _intact(
    store: Store, conditions: Sequence[ColumnElement[bool]], corrupt: list[str]
) -> Iterator[Result]:
    """Yield the selected runs one by one, and append the ids of unreadable runs to `corrupt`."""
    for run_id, result in store.each(*conditions):
        if result is None:
            corrupt.append(run_id)
        else:
            yield result


def _write(runs: Iterator[Result], form: str, output: Path | None) -> None:
    """Write runs in the format `form` to a file, or to the terminal if `output` is None."""
    if output is None:
        for piece in _pieces(runs, form, None):
            print_text(piece, end="")
    elif form == "parquet":
        write_parquet(runs, output)
    else:
        write_atomically(output, _pieces(runs, form, output.parent))


def _pieces(runs: Iterator[Result], form: str, folder: Path | None) -> Iterator[str]:
    """Yield the text of an export in pieces, so that few runs are in memory at a time.

    `form` is the name of the format. Temporary files lie in `folder`, or the system's folder if it
    is None.
    """
    if form == "json":
        yield from render_list(runs)
    elif form == "csv":
        yield from export_lines(runs, folder)
    else:
        yield from interchange.export_lines(runs, form)

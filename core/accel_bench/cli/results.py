"""`accel-bench results`: list, show, export and compare the identities of what was stored."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from accel_bench.cli import options
from accel_bench.cli.output import AnyFormat, Format, print_report, print_text
from accel_bench.documents.shown import plain

if TYPE_CHECKING:
    from accel_bench.scenario.experiment import Experiment
    from accel_bench.store.database import Store

app = typer.Typer(no_args_is_help=True, help="Results that were stored.")


@app.command("list")
def list_results(
    results: options.Results = options.DEFAULT_RESULTS,
    tag: Annotated[
        str | None, typer.Option(help="Only runs of sweep points with this tag; * is any text.")
    ] = None,
    output: AnyFormat = "table",
) -> None:
    """List all runs, a row each; a row that was damaged on the disk is shown as `corrupt`.

    What a kill of the program has cut off is `unfinished`.
    """
    from accel_bench.report.views.results import listing_report
    from accel_bench.runner.unfinished import open_results, unfinished_attempts
    from accel_bench.store.listing import list_runs

    with open_results(results) as store:
        rows = list_runs(store, unfinished_attempts(store.folder))
    rows = [row for row in rows if tag is None or fnmatchcase(str(row["tag"] or ""), tag)]
    print_report(listing_report(rows), output)


@app.command("show")
def show_results(
    identifier: Annotated[
        str,
        typer.Argument(metavar="ID", help="A run, experiment or session; its beginning will do."),
    ],
    results: options.Results = options.DEFAULT_RESULTS,
    output: Format = "table",
) -> None:
    """Show everything about a run, or about all runs of an experiment or a session."""
    from accel_bench.report.views.results import results_report
    from accel_bench.runner.unfinished import open_results

    with open_results(results) as store:
        found = store.find(identifier)
    print_report(results_report(found, store.folder), output)


@app.command("export")
def export_results(
    results: options.Results = options.DEFAULT_RESULTS,
    output_format: Annotated[
        Literal["json", "csv"],
        typer.Option("--format", help="`json`: everything; `csv`: a row for each run."),
    ] = "json",
    output: Annotated[
        Path | None, typer.Option("--output", help="File to write; else it is printed.")
    ] = None,
) -> None:
    """Write all runs to a file or to the terminal."""
    from accel_bench.analysis.listing import flat_run
    from accel_bench.documents.files import write_atomically
    from accel_bench.report.formats import render_report
    from accel_bench.report.table import Report, keyed
    from accel_bench.runner.unfinished import open_results

    with open_results(results) as store:
        found = store.results()
        readable = {result.run_id for result in found}
        corrupt = [row.run_id for row in store.rows() if row.run_id not in readable]
    if corrupt:
        typer.echo(plain(f"left out as corrupt: {', '.join(corrupt)}"), err=True)
    rows = [flat_run(result) for result in found]
    keys = dict.fromkeys(name for row in rows for name in row)
    text = render_report(Report(document=found, flat=keyed(keys, rows)), output_format)
    if output is None:
        print_text(text, end="")
    else:
        write_atomically(output, text)


@app.command("migrate")
def migrate_results(results: options.Results = options.DEFAULT_RESULTS) -> None:
    """Bring the results of an earlier version to this one, in place and without loss.

    `run` does that too; programs of the earlier version cannot use them from then on.
    """
    from accel_bench.runner.unfinished import open_results

    with open_results(results, write=True) as store:
        typer.echo(plain(f"{store.place} is up to date, with {store.count()} runs"))


@app.command("why")
def explain_difference(
    left: Annotated[str, typer.Argument(metavar="ID", help="A run or an experiment.")],
    right: Annotated[str, typer.Argument(metavar="ID", help="The other one.")],
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Print what makes two experiments different ones."""
    import json

    from accel_bench.analysis.listing import differing_keys
    from accel_bench.report.table import Report, Section, listed
    from accel_bench.runner.unfinished import open_results

    with open_results(results) as store:
        pair = [_experiment(store, identifier) for identifier in (left, right)]
    found = differing_keys(pair[0].identity, pair[1].identity)
    if not found:
        typer.echo(f"nothing differs: both are runs of the experiment {pair[0].id}")
        return
    rows = ([key, json.dumps(one), json.dumps(other)] for key, one, other in found)
    table = listed(("differs", pair[0].id, pair[1].id), rows)
    print_report(Report([Section(tables=[table])]), "table")


def _experiment(store: Store, identifier: str) -> Experiment:
    """Return the only experiment that an id means."""
    from accel_bench.errors import StoreError

    found = {result.experiment.id: result.experiment for result in store.find(identifier)}
    if len(found) > 1:
        raise StoreError(f"{identifier!r} means several experiments: {', '.join(sorted(found))}")
    return next(iter(found.values()))

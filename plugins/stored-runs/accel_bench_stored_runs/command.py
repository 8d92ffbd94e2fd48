"""`accel-bench results`: list, label, show and explain stored runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

import typer

from accel_bench.cli import options
from accel_bench.cli.output import AnyFormat, OutputFormat, print_aside, print_report
from accel_bench.documents.escaping import plain

if TYPE_CHECKING:
    from accel_bench.scenario.experiment import Experiment
    from accel_bench.store.database import Store

Identifier = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="A run, experiment or session; its beginning will do, or a run's number in "
        "`results list`.",
    ),
]
app = typer.Typer(help="Results that were stored.")


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """Options of `results list`."""

    results: options.ResultsOption = options.DEFAULT_RESULTS
    tag: Annotated[
        str | None, typer.Option(help="Only runs of sweep points with this tag; * is any text.")
    ] = None
    where: Annotated[str | None, typer.Option(metavar="CONDITION", help=options.WHERE)] = None
    group_by: Annotated[
        options.Names,
        typer.Option(metavar="COLUMN", help="Print figures of groups, a row for each value."),
    ] = None
    newest: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the N newest runs.")
    ] = None
    output: AnyFormat = "table"


@app.command("list")
@options.takes(ListOptions)
def list_results(asked: ListOptions) -> None:
    """List all runs, a row each.

    A row that was damaged on the disk is shown as `corrupt`. Of more than 1,000 such rows a table
    has the first 1,000 and the number of the others.

    A run that a kill of the program cut off is `unfinished`, and has no columns to choose it by.

    A condition compares columns, options of plugins and metrics with values: = != < <= > >= ~ in is
    null, joined with and, or, not. A value with spaces stands in quotes; ~ takes * for any text.

    Groups are by columns, separated by commas; means are over completed runs, and damaged ones are
    left out and named.
    """
    from accel_bench.runner.interrupted import open_results, unfinished_attempts
    from accel_bench.store.listing import MOST_CORRUPT, list_runs
    from accel_bench.store.queries import condition_of, field_of, group_runs, leave_out_damaged
    from accel_bench_stored_runs.view import groups_report, listing_report

    tag = asked.tag
    with open_results(asked.results) as store:
        conditions = [condition_of(store, asked.where)] if asked.where is not None else []
        if asked.group_by:
            conditions += [field_of(store, "tag").compare("~", tag)] if tag is not None else []
            names = [name.strip() for names in asked.group_by for name in names.split(",")]
            if damaged := leave_out_damaged(store, conditions):
                print_aside(plain(f"left out as corrupt: {', '.join(damaged)}"))
            print_report(groups_report(group_runs(store, names, conditions)), asked.output)
            return
        cut_off = () if conditions or asked.newest else unfinished_attempts(store.folder)
        whole = tag is not None or asked.output in ("json", "csv")
        most = math.inf if whole else MOST_CORRUPT
        rows, left_out = list_runs(store, cut_off, conditions, asked.newest, most)
    rows = [row for row in rows if tag is None or fnmatchcase(str(row["tag"] or ""), tag)]
    print_report(listing_report(rows, left_out), asked.output)


@app.command("tag")
def tag_results(
    identifier: Identifier,
    tags: Annotated[list[str], typer.Argument(metavar="TAG", help="One or more words.")],
    remove: Annotated[bool, typer.Option("--remove", help="Take them away instead.")] = False,
    results: options.ResultsOption = options.DEFAULT_RESULTS,
) -> None:
    """Give tags to a run, or to all runs of an experiment or session.

    `results list --where "tags = TAG"` finds the runs.
    """
    _label(results, identifier, "tag", tags, remove)


@app.command("note")
def note_results(
    identifier: Identifier,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What is to be remembered of it.")],
    remove: Annotated[bool, typer.Option("--remove", help="Take that note away.")] = False,
    results: options.ResultsOption = options.DEFAULT_RESULTS,
) -> None:
    """Write a note on a run, or on all runs of an experiment or session.

    `results show` prints the note.
    """
    _label(results, identifier, "note", [text], remove)


def _label(results: str, identifier: str, kind: str, texts: list[str], remove: bool) -> None:
    """Add tags or notes to the runs that an id names, and print the number of runs.

    With `remove` they are removed instead. `results` is the results folder, `identifier` the id of
    a run, experiment or session. `kind` is `tag` or `note`, and `texts` are the tags or notes.
    """
    from accel_bench.runner.interrupted import open_results
    from accel_bench.store.listing import add_labels, remove_labels

    with open_results(results) as store:
        store.run_ids(identifier)  # an unknown one is an error before a folder is made
    with open_results(results, write=True) as store:
        change = remove_labels if remove else add_labels
        runs = change(store, identifier, kind, texts)
    typer.echo(f"{len(runs)} run{'s' if len(runs) > 1 else ''}")


@app.command("show")
def show_results(
    identifier: Identifier,
    whole: Annotated[
        bool, typer.Option("--all", help="All keys, plugins, machine, evidence and steps.")
    ] = False,
    results: options.ResultsOption = options.DEFAULT_RESULTS,
    output: OutputFormat = "table",
) -> None:
    """Show a run, or all runs of an experiment or a session."""
    from accel_bench.runner.interrupted import open_results
    from accel_bench.store.listing import labels_of
    from accel_bench_stored_runs.view import results_report

    with open_results(results) as store:
        runs = store.find(identifier)
        labels = labels_of(store, [result.run_id for result in runs])
    print_report(results_report(runs, store.folder, labels, whole), output)


@app.command("why")
def explain_difference(
    left: Annotated[str, typer.Argument(metavar="ID", help="A run or an experiment.")],
    right: Annotated[str, typer.Argument(metavar="ID", help="The other one.")],
    results: options.ResultsOption = options.DEFAULT_RESULTS,
) -> None:
    """Print the differences that make two experiments different."""
    import json

    from accel_bench.analysis.tables.listing import differing_keys
    from accel_bench.report.table import Report, Section, listed
    from accel_bench.runner.interrupted import open_results

    with open_results(results) as store:
        pair = [_experiment(store, identifier) for identifier in (left, right)]
    keys = differing_keys(pair[0].identity, pair[1].identity)
    if not keys:
        typer.echo(f"nothing differs: both are runs of the experiment {pair[0].id}")
        return
    rows = ([key, json.dumps(value), json.dumps(other)] for key, value, other in keys)
    table = listed(("differs", pair[0].id, pair[1].id), rows)
    print_report(Report([Section(tables=[table])]), "table")


def _experiment(store: Store, identifier: str) -> Experiment:
    """Return the only experiment that the runs of an id belong to.

    Raises StoreError if they belong to several, or if the id names no runs.
    """
    from accel_bench.analysis.wording import join_names
    from accel_bench.errors import StoreError

    known = {result.experiment.id: result.experiment for result in store.find(identifier)}
    if len(known) > 1:
        several = join_names(sorted(known))
        raise StoreError(f"{identifier!r} means several experiments: {several}")
    return next(iter(known.values()))

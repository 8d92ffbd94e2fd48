"""`accel-bench results`: list, show, export and compare the identities of what was stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from accel_bench.cli import options
from accel_bench.cli.output import print_json, print_report, print_table

if TYPE_CHECKING:
    from accel_bench.machine.info import Machine
    from accel_bench.result import RankResult, Result
    from accel_bench.scenario.experiment import Experiment
    from accel_bench.store.database import Store

app = typer.Typer(no_args_is_help=True, help="Results that were stored.")


@app.command("list")
def list_results(
    results: options.Results = options.DEFAULT_RESULTS,
    output: Annotated[
        Literal["table", "json", "csv", "markdown"],
        typer.Option("--format", help="How to print: for people, programs or documents."),
    ] = "table",
) -> None:
    """List all runs, a row each; a row that was damaged on the disk is shown as `corrupt`."""
    from accel_bench.analysis.listing import LIST_COLUMNS, list_runs
    from accel_bench.report.table import Report, Section, Table, keyed
    from accel_bench.store.database import open_store

    with open_store(results, write=False) as store:
        rows = list_runs(store)
    flat = keyed(LIST_COLUMNS, rows)
    forms = {"tokens_per_second": "{:,.1f}".format}
    shown = [replace(column, form=forms.get(column.key, column.form)) for column in flat.columns]
    print_report(Report([Section(tables=[Table(shown, rows)])], rows, flat), output)


@app.command("show")
def show_results(
    identifier: Annotated[
        str,
        typer.Argument(metavar="ID", help="A run, experiment or session; its beginning will do."),
    ],
    results: options.Results = options.DEFAULT_RESULTS,
    output: Annotated[
        Literal["table", "json"], typer.Option("--format", help="How to print.")
    ] = "table",
) -> None:
    """Show everything about a run, or about all runs of an experiment or a session."""
    from accel_bench.store.database import open_store

    with open_store(results, write=False) as store:
        found = store.find(identifier)
        folder = store.folder
    if output == "json":
        print_json(found)
        return
    machine: Machine | None = None
    for name in dict.fromkeys(result.experiment.id for result in found):
        runs = [result for result in found if result.experiment.id == name]
        _print_experiment(runs)
        for result in runs:
            if result.machine != machine:
                machine = result.machine
                _print_yaml({"machine": machine and machine.model_dump(mode="json")})
            _print_run(result, folder)


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
    from accel_bench.store.database import open_store

    with open_store(results, write=False) as store:
        found = store.results()
        _warn_of_corrupt(store)
    rows = [flat_run(result) for result in found]
    keys = dict.fromkeys(name for row in rows for name in row)
    text = render_report(Report(document=found, flat=keyed(keys, rows)), output_format)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_atomically(output, text)


@app.command("why")
def explain_difference(
    left: Annotated[str, typer.Argument(metavar="ID", help="A run or an experiment.")],
    right: Annotated[str, typer.Argument(metavar="ID", help="The other one.")],
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Print what makes two experiments different ones."""
    import json

    from accel_bench.analysis.listing import differing_keys
    from accel_bench.store.database import open_store

    with open_store(results, write=False) as store:
        pair = [_experiment(store, identifier) for identifier in (left, right)]
    found = differing_keys(pair[0].identity, pair[1].identity)
    if not found:
        typer.echo(f"nothing differs: both are runs of the experiment {pair[0].id}")
        return
    rows = ([key, json.dumps(one), json.dumps(other)] for key, one, other in found)
    print_table(("differs", pair[0].id, pair[1].id), rows)


def _experiment(store: Store, identifier: str) -> Experiment:
    """Return the only experiment that an id means."""
    from accel_bench.errors import StoreError

    found = {result.experiment.id: result.experiment for result in store.find(identifier)}
    if len(found) > 1:
        raise StoreError(f"{identifier!r} means several experiments: {', '.join(sorted(found))}")
    return next(iter(found.values()))


def _warn_of_corrupt(store: Store) -> None:
    """Name on stderr what an export leaves out."""
    corrupt = [row.run_id for row in store.rows() if row.corrupt]
    if corrupt:
        typer.echo(f"left out as corrupt: {', '.join(corrupt)}", err=True)


def _print_experiment(runs: Sequence[Result]) -> None:
    """Print what was run, so that it can be run again, and where the time of its steps goes."""
    from accel_bench.analysis.schema import PlannedSummary
    from accel_bench.analysis.summary import summarize
    from accel_bench.report.views.stack_comparison import details

    result, experiment = runs[0], runs[0].experiment
    planned = [PlannedSummary(experiment=experiment)]
    summary = summarize(experiment.scenario.name, experiment.stack.name, planned, runs, rounds=0)
    _print_yaml(
        {
            "details": details(summary),
            "experiment": experiment.id,
            "sweep": experiment.sweep,
            "stack": experiment.stack.model_dump(mode="json"),
            "plugins": [plugin.model_dump() for plugin in result.plugins],
            "notices": list(experiment.notices),
            "scenario": experiment.scenario.model_dump(mode="json"),
        }
    )


def _print_run(result: Result, folder: Path) -> None:
    """Print how one attempt ended and what it measured."""
    import shlex

    from accel_bench.analysis.metrics.throughput import run_throughput

    speed = run_throughput(result)
    own = {"run_id", "session", "round", "position", "attempt", "status", "reasons", "phase"}
    log = folder / result.folder
    _print_yaml(
        {
            "run": result.model_dump(mode="json", include={*own, "started_at", "seconds", "exits"}),
            "tokens_per_second": speed.tokens_per_second if speed else None,
            "logs": [str(log / f"rank{rank}.log") for rank in range(_ranks(result))],
            "ranks": [_rank_facts(rank) for rank in result.ranks],
        }
    )
    if result.log_tail:
        _print_yaml({"log_tail": result.log_tail.splitlines()})
    columns = ("rank", "step", "part", "seconds", "real_tokens", "loss")
    if rows := list(_samples(result)):
        print_table(columns, rows)
    typer.echo(f"repeat with: {shlex.join(result.command)}\n")


def _ranks(result: Result) -> int:
    """Return how many ranks were started, also where none left a result."""
    return max(len(result.ranks), len(result.exits), 1)


def _rank_facts(rank: RankResult) -> dict[str, Any]:
    """Return what a rank reports beside its samples, and how each stage changed its memory."""
    from accel_bench.analysis.metrics.memory import stages_of

    document = rank.model_dump(mode="json", exclude_defaults=True)
    kept = ("rank", "status", "reasons", "error", "device", "metrics", "effective", "evidence")
    facts = {key: document[key] for key in kept if key in document}
    if stages := stages_of(rank):
        facts["memory_by_stage"] = [stage.model_dump() for stage in stages]
    return facts


def _samples(result: Result) -> Iterable[list[str]]:
    """Return a row for each step of each rank, in order of the steps."""
    for rank in result.ranks:
        for part in ("warmup", "discarded", "samples") if rank.window else ():
            for sample in getattr(rank.window, part):
                numbers = (f"{sample.seconds:.6f}", str(sample.real_tokens), str(sample.loss))
                label = "measured" if part == "samples" else part
                yield [str(rank.rank), str(sample.step), label, *numbers]


def _print_yaml(value: object) -> None:
    """Print what people can read; YAML escapes control characters."""
    import yaml

    typer.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100))

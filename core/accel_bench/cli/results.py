"""`accel-bench results`: list, show, export and tell apart what was stored."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from accel_bench.cli.output import print_json, print_table

if TYPE_CHECKING:
    from accel_bench.result import RankResult, Result
    from accel_bench.scenario.experiment import Experiment
    from accel_bench.store.database import Store

app = typer.Typer(no_args_is_help=True, help="Results that were stored.")

Results = Annotated[
    Path,
    typer.Option("--results", envvar="ACCEL_BENCH_RESULTS", help="The results folder."),
]
DEFAULT = Path("accel_bench_results")


@app.command("list")
def list_results(
    results: Results = DEFAULT,
    output: Annotated[
        Literal["table", "json", "csv", "markdown"],
        typer.Option("--format", help="How to print: for people, programs or documents."),
    ] = "table",
) -> None:
    """List all runs, a row each; a row that was damaged on the disk is shown as `corrupt`."""
    from accel_bench.analysis.listing import LIST_COLUMNS, csv_text, list_runs, markdown_text, shown
    from accel_bench.store.database import open_store

    with open_store(results, write=False) as store:
        rows = list_runs(store)
    if output == "json":
        print_json(rows)
    elif output == "csv":
        typer.echo(csv_text(rows, LIST_COLUMNS), nl=False)
    elif output == "markdown":
        typer.echo(markdown_text(rows, LIST_COLUMNS), nl=False)
    else:
        print_table(LIST_COLUMNS, ([shown(row[name]) for name in LIST_COLUMNS] for row in rows))


@app.command("show")
def show_results(
    identifier: Annotated[
        str,
        typer.Argument(metavar="ID", help="A run, experiment or session; its beginning will do."),
    ],
    results: Results = DEFAULT,
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
        print_json([result.model_dump(mode="json") for result in found])
        return
    machine: object = None
    for name in dict.fromkeys(result.experiment.id for result in found):
        runs = [result for result in found if result.experiment.id == name]
        _print_experiment(runs[0])
        for result in runs:
            if result.machine != machine:
                machine = result.machine
                _print_yaml({"machine": machine})
            _print_run(result, folder)


@app.command("export")
def export_results(
    results: Results = DEFAULT,
    output_format: Annotated[
        Literal["json", "csv"],
        typer.Option("--format", help="`json`: everything; `csv`: a row for each run."),
    ] = "json",
    output: Annotated[
        Path | None, typer.Option("--output", help="File to write; else it is printed.")
    ] = None,
) -> None:
    """Write all runs to a file or to the terminal."""
    import json

    from accel_bench.analysis.listing import csv_text, flat_run
    from accel_bench.runner.folders import write_atomically
    from accel_bench.store.database import open_store

    with open_store(results, write=False) as store:
        found = store.results()
        _warn_of_corrupt(store)
    if output_format == "csv":
        text = csv_text([flat_run(result) for result in found])
    else:
        text = json.dumps([result.model_dump(mode="json") for result in found], indent=2) + "\n"
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_atomically(output, text)


@app.command("why")
def explain_difference(
    left: Annotated[str, typer.Argument(metavar="ID", help="A run or an experiment.")],
    right: Annotated[str, typer.Argument(metavar="ID", help="The other one.")],
    results: Results = DEFAULT,
) -> None:
    """Print what makes two experiments different ones."""
    import json

    from accel_bench.analysis.listing import differences
    from accel_bench.store.database import open_store

    with open_store(results, write=False) as store:
        pair = [_experiment(store, identifier) for identifier in (left, right)]
    found = differences(pair[0].identity, pair[1].identity)
    if not found:
        typer.echo(f"nothing differs: both are runs of the experiment {pair[0].id}")
        return
    rows = ([key, json.dumps(one), json.dumps(other)] for key, one, other in found)
    print_table(("differs", pair[0].id, pair[1].id), rows)


def _experiment(store: Store, identifier: str) -> Experiment:
    """The only experiment that an id means."""
    from accel_bench.errors import StoreError

    found = {result.experiment.id: result.experiment for result in store.find(identifier)}
    if len(found) > 1:
        raise StoreError(f"{identifier!r} means several experiments: {', '.join(sorted(found))}")
    return next(iter(found.values()))


def _warn_of_corrupt(store: Store) -> None:
    """Say what an export leaves out."""
    corrupt = [row.run_id for row in store.rows() if row.corrupt]
    if corrupt:
        typer.echo(f"left out as corrupt: {', '.join(corrupt)}", err=True)


def _print_experiment(result: Result) -> None:
    """What was run: the scenario as it could be run again, the stack and its plugins."""
    experiment = result.experiment
    _print_yaml(
        {
            "experiment": experiment.id,
            "sweep": experiment.sweep,
            "stack": experiment.stack.model_dump(mode="json"),
            "plugins": [plugin.model_dump() for plugin in result.plugins],
            "notices": list(experiment.notices),
            "scenario": experiment.scenario.model_dump(mode="json"),
        }
    )


def _print_run(result: Result, folder: Path) -> None:
    """How one attempt ended and what it measured."""
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
    """Ranks that were started, also where none left a result."""
    return max(len(result.ranks), len(result.exits), 1)


def _rank_facts(rank: RankResult) -> dict[str, Any]:
    """What a rank reports beside its samples, and what each stage did to its memory."""
    from accel_bench.analysis.metrics.memory import stages_of

    document = rank.model_dump(mode="json")
    kept = ("rank", "status", "reasons", "error", "device", "metrics", "effective", "evidence")
    facts = {key: document[key] for key in kept if document[key] not in ({}, [])}
    if stages := stages_of(rank):
        facts["memory_by_stage"] = [stage.model_dump() for stage in stages]
    return facts


def _samples(result: Result) -> Iterable[list[str]]:
    """A row for each step of each rank, in order of the steps."""
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

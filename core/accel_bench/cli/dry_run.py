"""`run --dry-run`: the plan with every id, every reason, and an estimate of the time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import typer

from accel_bench.analysis.listing import csv_text, markdown_text
from accel_bench.analysis.summary import differs
from accel_bench.cli.output import cell, print_json, print_table
from accel_bench.cli.progress import duration
from accel_bench.documents.redaction import Redactor
from accel_bench.errors import StoreError
from accel_bench.planning.plan import Plan, Planned
from accel_bench.store.database import open_store

START_SECONDS = 10.0
"""What a process needs at least before its first step, nearly all of it imports."""

COLUMNS = ("experiment_id", "stack", "sweep", "status", "reasons", "differs")


def print_plan(plans: Sequence[Plan], results: Path, output: str) -> None:
    """Print every experiment, run or skipped, and how long it may take."""
    redactor = Redactor.from_environment(os.environ)
    documents = [redactor.redact_value(_document(plan, results)) for plan in plans]
    if output == "json":
        print_json(documents[0] if len(documents) == 1 else documents)
        return
    if output in ("csv", "markdown"):
        _print_rows(documents, output)
        return
    for plan, document in zip(plans, documents, strict=True):
        typer.echo(f"{plan.file.name}: {document['runs']} runs, {document['estimate']}")
        for notice in plan.notices:
            typer.echo(f"notice: {notice}")
        rows = [[row[column] for column in COLUMNS] for row in document["experiments"]]
        print_table(COLUMNS, rows)


def _print_rows(documents: Sequence[dict[str, Any]], output: str) -> None:
    """Print the experiments of all plans as one table for programs or documents."""
    columns = ("scenario", *COLUMNS)
    rows = [
        {"scenario": document["scenario"], **{column: cell(row[column]) for column in COLUMNS}}
        for document in documents
        for row in document["experiments"]
    ]
    typer.echo((csv_text if output == "csv" else markdown_text)(rows, columns), nl=False)


def _document(plan: Plan, results: Path) -> dict[str, Any]:
    seconds, known = _estimate(plan, results)
    basis = "from earlier runs here" if known else "at least: the steps have not been timed here"
    return {
        "scenario": plan.file.name,
        "baseline": plan.baseline,
        "runs": plan.runs,
        "estimated_seconds": round(seconds, 1),
        "estimate": f"about {duration(seconds)} ({basis})",
        "notices": list(plan.notices),
        "experiments": [_row(planned) for planned in plan.planned],
    }


def _row(planned: Planned) -> dict[str, Any]:
    experiment = planned.experiment
    return {
        "experiment_id": experiment.id,
        "stack": experiment.stack.name,
        "sweep": experiment.sweep,
        "status": "skipped" if planned.skipped else "planned",
        "reasons": list(planned.skipped),
        "differs": differs(experiment.stack),
    }


def _estimate(plan: Plan, results: Path) -> tuple[float, bool]:
    """Seconds of all rounds: from stored runs of the same experiments where there are any."""
    earlier: dict[str, list[float]] = {}
    ids = [planned.experiment.id for planned in plan.runnable]
    try:
        with open_store(results, write=False) as store:
            for result in store.results(experiment_ids=ids):
                earlier.setdefault(result.experiment.id, []).append(result.seconds)
    except StoreError:
        pass
    rounds = plan.file.measure.rounds
    runs = [median(earlier.get(name, [START_SECONDS])) for name in ids]
    prepare = START_SECONDS / 5 * len(ids)
    return sum(runs) * rounds + prepare, bool(ids) and set(ids) <= set(earlier)

"""`run --dry-run`: the plan with every id, every reason, and an estimate of the time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from accel_bench.analysis.summary import differs
from accel_bench.cli.output import print_report
from accel_bench.cli.progress import duration
from accel_bench.documents.redaction import Redactor
from accel_bench.errors import StoreError
from accel_bench.planning.plan import Plan, Planned
from accel_bench.report.table import Report, Section, keyed, one_or_list
from accel_bench.store.database import open_store

START_SECONDS = 10.0
"""What a process needs at least before its first step, nearly all of it imports."""

COLUMNS = ("experiment_id", "stack", "sweep", "status", "reasons", "differs")


def print_plan(plans: Sequence[Plan], results: Path, output: str) -> None:
    """Print every experiment, run or skipped, and how long it may take."""
    redactor = Redactor.from_environment(os.environ)
    documents = [redactor.redact_value(_document(plan, results)) for plan in plans]
    flat = keyed(
        ("scenario", *COLUMNS),
        [{"scenario": one["scenario"], **row} for one in documents for row in one["experiments"]],
    )
    sections = [
        Section(
            title=f"{one['scenario']}: {one['runs']} runs, {one['estimate']}",
            tables=[keyed(COLUMNS, one["experiments"])],
            notes=[f"notice: {notice}" for notice in one["notices"]],
        )
        for one in documents
    ]
    if output == "markdown":  # one table, as in CSV
        sections = [Section(tables=[flat])]
    print_report(Report(sections, one_or_list(documents), flat), output)


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
    """Return seconds of all rounds, and whether stored runs of all experiments are their source."""
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

"""Plan of a run, as printed by `run --dry-run` and `plugins check --scenario`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout, suppress
from typing import Any

from accel_bench.analysis.aggregate import PlannedSummary
from accel_bench.analysis.wording import count, differs, duration, grouped_by_reason, label_of
from accel_bench.cli.output import print_report
from accel_bench.errors import NothingToRunError, StoreError
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.planning.request import split_trackers
from accel_bench.report.table import Report, Section, keyed, one_or_list
from accel_bench.scenario.find import find_drafts
from accel_bench.scenario.sweep import is_chosen
from accel_bench.store.database import open_store

COLUMNS = ("experiment_id", "stack", "sweep", "tag", "status", "reasons", "differs")
"""Columns of the plan."""

CHECK_COLUMNS = ("stack", "sweep", "here", "reasons")
"""Columns of `plugins check --scenario`."""


def print_plan(plans: Sequence[Plan], results: str, output: str) -> None:
    """Print every experiment of the plans, to be run or skipped, with estimated times. `results` is
    the store with earlier runs for the estimate, `output` the value of `--format`."""
    documents = [_document(plan, COLUMNS, **_estimate(plan, results)) for plan in plans]
    flat = keyed(
        ("scenario", *COLUMNS),
        [{"scenario": doc["scenario"], **row} for doc in documents for row in doc["experiments"]],
    )
    sections = [
        _section(doc, COLUMNS, f"{count(doc['runs'], 'run')}{_more(doc)}, {doc['estimate']}")
        for doc in documents
    ]
    if output == "markdown":  # one table, as in CSV
        sections = [Section(tables=[flat])]
    print_report(Report(sections, one_or_list(documents), flat), output)


def print_skipped(file: str, plugin: str | None, output: str) -> None:
    """Print whether each stack of a scenario runs here at each sweep point, or else why not.

    `file` names the scenario. `plugin` adds its stack, as `run --plugin` does. `output` is the
    value of `--format`. Raises ScenarioError or PluginError for faulty input, and NothingToRunError
    if no experiment runs here.
    """
    machine = read_machine()
    stacks, trackers = split_trackers((plugin,) if plugin else ())
    request = PlanRequest(
        plugins=stacks, trackers=trackers, build_environments=False, stand_ins=True
    )
    with redirect_stdout(sys.stderr):  # what a plugin prints is no part of the document
        plans = [make_plan(draft, machine, request) for draft in find_drafts([file])]
    documents = [_document(plan, CHECK_COLUMNS) for plan in plans]
    sections = [
        _section(
            doc, CHECK_COLUMNS, f"{len(plan.runnable)} of {len(plan.planned)} experiments run here"
        )
        for doc, plan in zip(documents, plans, strict=True)
    ]
    print_report(Report(sections, one_or_list(documents)), output)
    if not any(plan.runnable for plan in plans):
        raise NothingToRunError(plans[0].nothing)


def _document(plan: Plan, columns: Sequence[str], **facts: Any) -> dict[str, Any]:
    return {
        "scenario": plan.file.name,
        "baseline": plan.baseline,
        "notices": list(plan.notices),
        **facts,
        "experiments": [
            {column: row[column] for column in columns} for row in map(_row, plan.summaries)
        ],
    }


def _section(document: dict[str, Any], columns: Sequence[str], summary: str) -> Section:
    rows = document["experiments"]
    # What the program makes of a point's values says no more than they do.
    chosen = any(is_chosen(row.get("tag", ""), row["sweep"]) for row in rows)
    shown = [column for column in columns if chosen or column != "tag"]
    return Section(
        title=f"{document['scenario']}: {summary}",
        tables=[keyed(shown, rows)],
        notes=[
            *(f"notice: {notice}" for notice in document["notices"]),
            *(f"memory, without activations: {text}" for text in document.get("memory", ())),
        ],
    )


def _row(planned: PlannedSummary) -> dict[str, Any]:
    experiment = planned.experiment
    return {
        "experiment_id": experiment.id,
        "stack": experiment.stack.name,
        "sweep": experiment.sweep,
        "tag": experiment.tag,
        "status": "skipped" if planned.skipped else "planned",
        "here": "skipped" if planned.skipped else "runs",
        "reasons": list(planned.skipped),
        "differs": differs(experiment.stack),
    }


def _estimate(plan: Plan, results: str) -> dict[str, Any]:
    """Return a plan's number of runs, needed memory and estimated duration, by key of the JSON."""
    with ExitStack() as stack:
        store = None
        with suppress(StoreError):
            store = stack.enter_context(open_store(results, write=False))
        seconds = plan.seconds(store)
    needs = [(label_of(run.experiment), run.need.describe()) for run in plan.runnable if run.need]
    return {
        "runs": plan.runs,
        "more_while_open": plan.adds_rounds,
        "memory": grouped_by_reason(needs),
        "estimated_seconds": None if seconds is None else round(seconds, 1),
        "estimate": _time(plan, seconds),
    }


def _more(document: dict[str, Any]) -> str:
    return ", more while a verdict is open" if document["more_while_open"] else ""


def _time(plan: Plan, seconds: float | None) -> str:
    if not plan.runnable:
        return "nothing of it runs here"
    if seconds is None:
        return "time not known: not all of it has run here before"
    return f"about {duration(seconds)} (from earlier runs here)"

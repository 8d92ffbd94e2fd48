"""`plugins check --scenario`: what of a scenario runs on this machine, and why not the rest."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from typing import Any

from accel_bench.cli.output import print_report
from accel_bench.cli.request import find_drafts
from accel_bench.documents.redaction import Redactor
from accel_bench.errors import NothingToRunError
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import Plan, Planned, PlanRequest, make_plan
from accel_bench.report.table import Report, Section, keyed, one_or_list

COLUMNS = ("stack", "sweep", "here", "reasons")


def print_skipped(file: str, plugin: str | None, output: str) -> None:
    """Print every stack at every sweep point: whether it runs here, or why not.

    `plugin` adds its stack, as `run --plugin` does. Raises ScenarioError or PluginError for what
    the user must mend, and NothingToRunError when nothing is left.
    """
    machine = read_machine()
    request = PlanRequest(plugins=(plugin,) if plugin else ())
    with redirect_stdout(sys.stderr):  # what a plugin prints is no part of the document
        plans = [make_plan(draft, machine, request) for draft in find_drafts([file])]
    redactor = Redactor.from_environment(os.environ)
    documents = [redactor.redact_value(_document(plan)) for plan in plans]
    print_report(Report(list(map(_section, documents)), one_or_list(documents)), output)
    if not any(plan.runnable for plan in plans):
        raise NothingToRunError(plans[0].nothing)


def _document(plan: Plan) -> dict[str, Any]:
    return {
        "scenario": plan.file.name,
        "baseline": plan.baseline,
        "notices": list(plan.notices),
        "experiments": [_row(planned) for planned in plan.planned],
    }


def _row(planned: Planned) -> dict[str, Any]:
    return {
        "stack": planned.experiment.stack.name,
        "sweep": planned.experiment.sweep,
        "here": "skipped" if planned.skipped else "runs",
        "reasons": list(planned.skipped),
    }


def _section(document: dict[str, Any]) -> Section:
    rows = document["experiments"]
    run = sum(row["here"] == "runs" for row in rows)
    return Section(
        title=f"{document['scenario']}: {run} of {len(rows)} experiments run here",
        tables=[keyed(COLUMNS, rows)],
        notes=[f"notice: {notice}" for notice in document["notices"]],
    )

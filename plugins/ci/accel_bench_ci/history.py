"""`accel-bench history`: one scenario over time, and where it became slower or faster.

Of stored runs it reads the columns, and one document for each experiment.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy import ColumnElement

from accel_bench.analysis.checks.audit import DEGRADING_ALONE
from accel_bench.analysis.metrics.offered_load import offered_rate
from accel_bench.cli.options import MeasureOptions, Names, Where, takes
from accel_bench.cli.output import print_report
from accel_bench.cli.request import new_sessions, one_draft, plan_request
from accel_bench.errors import ScenarioError, StoreError
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import Plan, make_plan
from accel_bench.result import Result, Status
from accel_bench.runner.allocation import allocated, machine_of
from accel_bench.runner.unfinished import open_results
from accel_bench.scenario.experiment import Experiment
from accel_bench.store.database import ROWS_OF_COLUMNS, Store
from accel_bench.store.names import COMPUTED
from accel_bench.store.queries import condition_of
from accel_bench.store.rows import intact
from accel_bench.store.schema import IMPORTED, RUNS, within_limits
from accel_bench.store.selection import CONDITION_SIGNS, one_of_each
from accel_bench_ci.figures import (
    METRICS,
    REQUEST_LATENCY,
    TrackedFigure,
    compared_figure,
    figure_named,
)
from accel_bench_ci.history_view import history_report
from accel_bench_ci.series import History, HistoryRun, histories, history_run
from accel_bench_ci.step_confirmation import Confirmation, confirm_step, other_series


@dataclass(frozen=True, kw_only=True)
class HistoryOptions(MeasureOptions):
    """Options of `history`."""

    scenario: Annotated[
        str, typer.Argument(help="A scenario's name or file; or a --where condition on runs.")
    ]
    only: Annotated[Names, typer.Option(help="Only this stack; repeatable.")] = None
    figure: Annotated[
        str, typer.Option(metavar="NAME", help="A figure, such as peak_memory_bytes; metrics.NAME.")
    ] = "tokens_per_second"
    where: Where = None
    confirm: Annotated[
        bool,
        typer.Option("--confirm", help="Run what the newest step made worse again."),
    ] = False
    rounds: Annotated[int, typer.Option(min=2, help="New rounds with --confirm.")] = 5


@takes(HistoryOptions)
def history(options: HistoryOptions) -> int:
    """Show a figure of a scenario over time, and the steps in which its level changed.

    A point is what one command measured; a series has one work, stack, sweep point and kind of
    device, whatever the versions. Steps are looked for from 14 sessions on, by a method that takes
    drift, memory and outliers for what they are.

    With --confirm, where the newest step is for the worse, the stack and its baseline are run again
    in fresh processes, side by side. Exits with 1 where that confirms it, else with 0. Options that
    choose how to run are for that.
    """
    with open_results(options.results) as store:
        found = _histories(store, options)
    chosen = [one for one in found if options.only is None or one.stack in options.only]
    if not chosen:
        raise StoreError(
            f"no measured run of {options.scenario!r} with these options; its stacks: "
            f"{', '.join(dict.fromkeys(one.stack for one in found)) or 'none'}"
        )
    confirmed = []
    if options.confirm:
        worse = [one for one in chosen if (step := one.newest_step) and step.change == "worse"]
        confirmed = _confirm(worse, found, options) if worse else []
    print_report(history_report(chosen, confirmed), options.output)
    saturated = options.confirm and any(one.saturated_since for one in chosen)
    return 1 if saturated or any(one.confirmed for one in confirmed) else 0


def _histories(store: Store, options: HistoryOptions) -> list[History]:
    conditions = [condition_of(store, options.where)] if options.where is not None else []
    runs, figure = read_history(store, options.figure, [_chosen(store, options), *conditions])
    return histories(runs, figure)


def _chosen(store: Store, options: HistoryOptions) -> ColumnElement[bool]:
    text = options.scenario
    if any(sign in text for sign in CONDITION_SIGNS):
        return condition_of(store, text)
    name = str(one_draft(text, "history").data.get("name", "")) if Path(text).is_file() else text
    return RUNS.c.scenario == name


def _confirm(
    worse: Sequence[History], found: Sequence[History], options: HistoryOptions
) -> list[Confirmation]:
    """Run what became worse beside its baseline, and judge each step by that."""
    draft, machine = one_draft(options.scenario, "history"), read_machine()
    stacks = tuple(dict.fromkeys(one.stack for one in worse))
    request = plan_request(options, {"measure.rounds": options.rounds}, only=stacks)
    with allocated([draft], machine, request, sys.argv, False) as allocation:
        if allocation is not None and allocation.exit_code is not None:
            raise ScenarioError("the launcher runs the program elsewhere: use --confirm there")
        machine = machine_of(allocation, machine)
        with redirect_stdout(sys.stderr):
            plan = make_plan(draft, machine, request)
            plan = make_plan(draft, machine, replace(request, only=(*stacks, plan.baseline)))
        plan = _of_series(plan, worse)
        with open_results(options.results, write=True) as store:
            with new_sessions(options, store, machine, allocation) as new_session:
                session = new_session()
                session.run_plan(plan)
            fresh = store.results(session=session.id)
    return [_judged(one, found, plan, fresh) for one in worse]


def _of_series(plan: Plan, worse: Sequence[History]) -> Plan:
    """Return the plan without sweep points at which none of its own series became worse."""
    concerned = {one.series for one in worse}
    own = (one.experiment for one in plan.planned)
    points = {one.point for one in own if one.series in concerned}
    if not points:
        raise ScenarioError("; ".join(other_series(one) for one in worse))
    return replace(plan, planned=tuple(p for p in plan.planned if p.experiment.point in points))


def _judged(
    one: History, found: Sequence[History], plan: Plan, fresh: Sequence[Result]
) -> Confirmation:
    """Judge the step of one series by new runs of the same series, and of its baseline's."""
    own = _runs_of(one, fresh)
    planned = {p.experiment.series: p.experiment for p in plan.planned}
    if one.series not in planned:
        return confirm_step(one, []).model_copy(update={"conclusion": other_series(one)})
    point, rate = planned[one.series].point, offered_rate(planned[one.series].scenario)
    side = (plan.baseline, point, rate)
    beside = {
        key
        for key, e in planned.items()
        if (e.stack.name, e.point, offered_rate(e.scenario)) == side
    }
    base = next((other for other in found if other.series in beside), None)
    return confirm_step(one, own, base, _runs_of(base, fresh) if base else [])


def _runs_of(one: History, runs: Sequence[Result]) -> list[HistoryRun]:
    return [history_run(run, one.tracked) for run in runs if run.experiment.series == one.series]


def read_history(
    store: Store, figure: str, conditions: Sequence[ColumnElement[bool]] = ()
) -> tuple[list[HistoryRun], TrackedFigure]:
    """Return the chosen runs that were measured, with the figure. Raises StoreError.

    Damaged rows are left out.
    """
    from sqlalchemy import select

    measured = RUNS.c.audited_status != IMPORTED
    computed = [value.label(name) for name, value in COMPUTED.items()]
    query = select(*within_limits(RUNS, store.on_sqlite), *computed).where(measured, *conditions)
    rows = [row for row in store.fetch(query, ROWS_OF_COLUMNS) if intact(row)]
    examples = one_of_each(store, rows)
    tracked = figure_named(figure, examples.values())
    experiments = {name: one.experiment for name, one in examples.items()}
    of_requests = {
        name: compared_figure(tracked, offered_rate(one.scenario)) is REQUEST_LATENCY
        for name, one in experiments.items()
    }
    known = [row for row in rows if row["experiment_id"] in experiments]
    flat = [row for row in known if not of_requests[row["experiment_id"]]]
    # What the engine says of the load stands in the documents alone.
    whole = [row["run_id"] for row in known if of_requests[row["experiment_id"]]]
    runs = [_run(row, experiments, tracked.name) for row in flat]
    return [*runs, *(history_run(one, tracked) for one in store.with_ids(whole))], tracked


def _run(row: Mapping[str, Any], experiments: Mapping[str, Experiment], figure: str) -> HistoryRun:
    status = Status(row["status"])
    names = {name for name, _ in json.loads(row["broken"] or "[]")}
    usable = status.completed and not names - DEGRADING_ALONE
    experiment = experiments[row["experiment_id"]]
    stack = experiment.stack.model_copy(update={"name": row["stack"]})
    return HistoryRun(
        run_id=row["run_id"],
        session=row["session"],
        round=row["round"],
        attempt=row["attempt"],
        started_at=row["started_at"],
        status=status,
        replaces=row["replaces"] or "",
        experiment=experiment.model_copy(update={"stack": stack}),
        value=_value(row, figure) if usable else None,
    )


def _value(row: Mapping[str, Any], figure: str) -> float | None:
    if not figure.startswith(METRICS):
        value: float | None = row[figure]
        return value
    found = json.loads(row["metrics"] or "{}").get(figure.removeprefix(METRICS))
    return float(found) if isinstance(found, int | float) else None

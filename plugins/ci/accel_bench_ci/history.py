"""`accel-bench history`: a figure of a scenario over time, and the steps of its level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy import ColumnElement

from accel_bench.analysis.metrics.offered_load import offered_rate
from accel_bench.analysis.quantity import Quantity
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.wording import count, figure_text, label, percent, significant
from accel_bench.cli.options import MeasureOptions, Names, Where, takes
from accel_bench.cli.output import print_report
from accel_bench.cli.request import Invocation, plan_request, single_draft
from accel_bench.errors import ScenarioError, StoreError
from accel_bench.planning.plan import Plan
from accel_bench.report.table import (
    Column,
    Line,
    Report,
    Section,
    Table,
    columns_of,
    one_or_list,
    reader,
)
from accel_bench.result import Result
from accel_bench.runner.interrupted import open_results
from accel_bench.scenario.experiment import Experiment
from accel_bench.store.database import Store
from accel_bench.store.queries import condition_of
from accel_bench.store.schema import IMPORTED, RUNS
from accel_bench.store.selection import CONDITION_SIGNS
from accel_bench_ci.figures import figure_named
from accel_bench_ci.series import (
    History,
    HistoryPoint,
    HistoryRun,
    HistoryStep,
    histories,
    history_run,
)
from accel_bench_ci.step_confirmation import Confirmation, confirm_step, other_series_notice


@dataclass(frozen=True, kw_only=True)
class HistoryOptions(MeasureOptions):
    """Command-line options of `accel-bench history`."""

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

    A point is what one command measured. A series has the same settings, stack, sweep point and
    kind of device, whatever the versions. Steps are searched from 14 sessions on, by a method that
    does not mistake drift, autocorrelation or outliers for steps.

    With --confirm, if the newest step is a worsening, the stack and its baseline are run again in
    fresh processes, side by side. Exits with 1 if the new runs confirm it, else with 0. Options
    that choose how to run concern these new runs.
    """
    with open_results(options.results) as store:
        all_series = _histories(store, options)
    chosen = [
        series for series in all_series if options.only is None or series.stack in options.only
    ]
    if not chosen:
        raise StoreError(
            f"no measured run of {options.scenario!r} with these options; its stacks: "
            f"{', '.join(dict.fromkeys(series.stack for series in all_series)) or 'none'}"
        )
    confirmed = []
    if options.confirm:
        worse = [
            series for series in chosen if (step := series.newest_step) and step.change == "worse"
        ]
        confirmed = _confirm(worse, all_series, options) if worse else []
    print_report(history_report(chosen, confirmed), options.output)
    saturated = options.confirm and any(series.saturated_since for series in chosen)
    return 1 if saturated or any(judged.confirmed for judged in confirmed) else 0


def _histories(store: Store, options: HistoryOptions) -> list[History]:
    text = options.scenario
    where = [text] if any(sign in text for sign in CONDITION_SIGNS) else []
    conditions = [
        condition_of(store, condition)
        for condition in (*where, options.where)
        if condition is not None
    ]
    if not where:
        draft = single_draft(text, "history") if Path(text).is_file() else None
        conditions.append(RUNS.c.scenario == (str(draft.data.get("name", "")) if draft else text))
    runs, figure = read_history(store, options.figure, conditions)
    return histories(runs, figure)


def _confirm(
    worse: Sequence[History], found: Sequence[History], options: HistoryOptions
) -> list[Confirmation]:
    """Run stacks that became worse and their baselines, and judge each newest step by these runs.

    `worse` are the histories to confirm, `found` all histories, among them the baselines'.
    """
    draft = single_draft(options.scenario, "history")
    stacks = tuple(dict.fromkeys(series.stack for series in worse))
    request = plan_request(options, {"measure.rounds": options.rounds}, only=stacks)
    with Invocation(options).allocated([draft], request) as invoked:
        plan = invoked.plan(draft, request)
        plan = invoked.plan(draft, replace(request, only=(*stacks, plan.baseline)))
        plan = _of_series(plan, worse)
        if options.dry_run:
            invoked.show([plan])
            raise typer.Exit(0)
        with open_results(options.results, write=True) as store:
            with invoked.sessions(store) as new_session:
                session = new_session()
                session.run_plan(plan)
            fresh = store.results(session=session.id)
    return [_judged(series, found, plan, fresh) for series in worse]


def _of_series(plan: Plan, worse: Sequence[History]) -> Plan:
    """Return a plan restricted to the sweep points of the histories that became worse. Raises
    ScenarioError if the plan has none of these points."""
    concerned = {history.series for history in worse}
    own = (planned.experiment for planned in plan.planned)
    points = {experiment.point for experiment in own if experiment.series in concerned}
    if not points:
        raise ScenarioError("; ".join(other_series_notice(history) for history in worse))
    return replace(plan, planned=tuple(p for p in plan.planned if p.experiment.point in points))


def _judged(
    one: History, found: Sequence[History], plan: Plan, fresh: Sequence[Result]
) -> Confirmation:
    """Return the verdict on a history's newest step, by new runs of its stack and its baseline.

    `one` is the history, and `found` are all histories, the baseline's among them. `plan` is the
    plan of the new runs `fresh`.
    """
    own = _runs_of(one, fresh)
    planned = {p.experiment.series: p.experiment for p in plan.planned}
    if one.series not in planned:
        return confirm_step(one, []).model_copy(update={"conclusion": other_series_notice(one)})
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
) -> tuple[list[HistoryRun], Quantity]:
    """Return the measured runs that fulfil all `conditions`, and the figure of the given name.

    Raises StoreError for an unknown figure. Damaged rows are skipped. Only one full result at a
    time is held in memory.
    """

    def results() -> Iterator[Result]:
        measured = RUNS.c.audited_status != IMPORTED
        return (run for _, run in store.each(measured, *conditions) if run is not None)

    tracked = figure_named(figure, results())
    known: dict[str, Experiment] = {}
    runs = []
    for result in results():
        experiment = result.experiment
        shared = known.setdefault(f"{experiment.id} {experiment.stack.name}", experiment)
        runs.append(history_run(result.model_copy(update={"experiment": shared}), tracked))
    return runs, tracked


MOST_POINTS = 30
"""Maximum number of points in the printed table, the newest; JSON and CSV have all points."""


def history_report(found: Sequence[History], confirmed: Sequence[Confirmation] = ()) -> Report:
    """Return a printable report on histories: a section for each with its conclusion, steps and
    points.

    `confirmed` are the verdicts of new runs, which get a section each.
    """
    lines = [line for history in found for line in _lines(history)]
    sections = [_section(history) for history in found]
    sections += [
        Section(title="confirmation", headline=verdict.conclusion) for verdict in confirmed
    ]
    document = {"histories": list(found), "confirmations": list(confirmed)}
    return Report(sections, document if confirmed else one_or_list(found), Table(FLAT, lines))


def _section(one: History) -> Section:
    newest = list(_lines(one))[-MOST_POINTS:]
    older = len(one.points) - len(newest)
    tables = [Table(STEPS, one.steps)] if one.steps else []
    tables.append(
        Table(POINTS, newest, notes=[f"and {count(older, 'older session')}"] if older else [])
    )
    devices = f" on {', '.join(one.devices)}" if one.devices else ""
    return Section(
        title=f"{one.scenario}: {label(one)}{devices}",
        headline=one.conclusion + ".",
        tables=tables,
        notes=["steps are estimates until new runs confirm them (--confirm)"] if one.steps else [],
    )


def _lines(one: History) -> Iterator[Line]:
    """Yield a table line for each point of a history, with the step that begins there."""
    steps = {step.point: step for step in one.steps}
    for place, point in enumerate(one.points):
        yield Line(history=one, point=point, step=steps.get(place))


def _interval(value: Interval) -> str:
    middle = figure_text(value.median)
    if value.low is None or value.high is None:
        return middle
    return f"{middle} [{figure_text(value.low)}, {figure_text(value.high)}]"


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{percent(value)}"


STEPS = (
    Column("step at session", reader("session"), kind="name"),
    Column("date", lambda step: step.started_at[:10], kind="word"),
    Column("change", reader("relative_change"), form=_signed, kind="number"),
    Column("that is", reader("change"), kind="word"),
    Column("p", reader("p_value"), form=lambda value: significant(value, 2), kind="number"),
    Column("sessions since", reader("points_since"), kind="number", rank=1),
    Column("changed there", reader("changed")),
)
"""Columns of the printed table of steps."""

POINTS = (
    Column("session", reader("point.session"), kind="name"),
    Column("date", lambda line: line.point.started_at[:10], kind="word"),
    Column("value", reader("point.value"), unit="[95 % interval]", form=_interval, kind="number"),
    Column("unit", reader("history.unit"), kind="word"),
    Column("runs", reader("point.runs"), kind="number", rank=1),
    Column("status", reader("point.statuses"), form=", ".join),
    Column("step", reader("step.relative_change"), form=_signed, kind="number"),
    Column("accel-bench", lambda line: line.point.versions.get("accel-bench"), kind="word", rank=2),
)
"""Columns of the printed table of points."""

FLAT = (
    *columns_of(History, "history", without="schema_version series saturated_since conclusion"),
    *columns_of(HistoryPoint, "point"),
    *columns_of(HistoryStep, "step", "step_{}", "relative_change change p_value before after"),
)
"""CSV columns of `history`."""

"""One scenario over time: what `history` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.wording import count, label, percent, significant
from accel_bench.report.table import (
    Column,
    Report,
    Section,
    Table,
    interval_paths,
    one_or_list,
    paths,
    reader,
)
from accel_bench_ci.figures import figure_text
from accel_bench_ci.series import History, HistoryPoint, HistoryStep
from accel_bench_ci.step_confirmation import Confirmation

MOST_POINTS = 30
"""Points that are printed for people, the newest; JSON and CSV have all."""


class Line(NamedTuple):
    """One point of one history."""

    history: History
    point: HistoryPoint
    step: HistoryStep | None
    """The step that begins there."""


def history_report(found: Sequence[History], confirmed: Sequence[Confirmation] = ()) -> Report:
    """Return a section for each series: the answer, its steps, its points."""
    lines = [line for one in found for line in _lines(one)]
    sections = [_section(one) for one in found]
    sections += [Section(title="confirmation", answer=one.conclusion) for one in confirmed]
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
        answer=one.conclusion + ".",
        tables=tables,
        notes=["steps are estimates until new runs confirm them (--confirm)"] if one.steps else [],
    )


def _lines(one: History) -> Iterator[Line]:
    steps = {step.point: step for step in one.steps}
    for place, point in enumerate(one.points):
        yield Line(one, point, steps.get(place))


def _interval(value: Interval) -> str:
    middle = figure_text(value.median)
    if value.low is None or value.high is None:
        return middle
    return f"{middle} [{figure_text(value.low)}, {figure_text(value.high)}]"


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{percent(value)}"


def _changed(step: HistoryStep) -> str:
    return "; ".join(f"{one.key} {one.a} to {one.b}" for one in step.differing)


STEPS = (
    Column("step at session", reader("session"), kind="name"),
    Column("date", lambda step: step.started_at[:10], kind="word"),
    Column("change", reader("relative_change"), form=_signed, kind="number"),
    Column("that is", reader("change"), kind="word"),
    Column("p", reader("p_value"), form=lambda value: significant(value, 2), kind="number"),
    Column("sessions since", reader("points_since"), kind="number", rank=1),
    Column("changed there", _changed),
)
"""Columns of the steps."""

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
"""Columns of the points."""

FLAT = (
    *paths("history", "scenario stack sweep tag experiment_id devices figure unit better"),
    *paths("point", "session started_at runs statuses"),
    *interval_paths("point", "value"),
    *paths("step", "relative_change change p_value before after", "step_{}"),
    *paths("point", "run_ids values versions"),
)
"""Columns of the CSV."""

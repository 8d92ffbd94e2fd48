"""Histories of a figure: its value session by session, and the steps in which its level changed.

A series contains runs with the same settings and stack at the same sweep point on the same kind of
device; versions may differ and explain steps. Each command contributes one value, since its runs
share the state of the machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from accel_bench.analysis.aggregate import (
    ExperimentRuns,
    PlannedSummary,
    StopReason,
    replaced_rounds,
)
from accel_bench.analysis.checks.comparability import Difference
from accel_bench.analysis.metrics.offered_load import (
    OfferedLoad,
    is_saturated,
    offered_rate,
    saturation,
)
from accel_bench.analysis.quantity import Better, Quantity
from accel_bench.analysis.schema import Document, StackRow
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.tables.experiment_keys import tell_apart
from accel_bench.analysis.tables.listing import differing_keys
from accel_bench.analysis.wording import join_names, label_of, percent, plain_value
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.result import Result, Status
from accel_bench.scenario.experiment import Experiment
from accel_bench_ci.figures import (
    REQUEST_LATENCY,
    TOKENS_PER_SECOND,
    Change,
    change_of,
    compared_figure,
    figure_interval,
    figures_of,
)
from accel_bench_ci.steps import SHORTEST_SERIES, find_steps

FEWEST = SHORTEST_SERIES
"""Minimum number of sessions to look for a step."""

STEPS_ARE_RATIOS = "steps are looked for in positive values alone"


class HistoryPoint(Frozen):
    """Point of a history: the value of the runs of one command."""

    session: str
    """Id of the command's first session."""

    started_at: str
    """Start of the first run: UTC time, ISO 8601."""

    runs: int
    """Number of runs with a valid value."""

    value: Interval | None
    """Median of the values with a 95 % interval; null without values."""

    values: tuple[float, ...]
    """Value of each run, in the order of rounds."""

    run_ids: tuple[str, ...]
    """Ids of the runs with values."""

    statuses: tuple[str, ...]
    """Distinct statuses of the runs."""

    saturated: bool = False
    """True if requests piled up in a run, which invalidates latencies."""

    versions: dict[str, JsonValue]
    """Versions of libraries and plugins, with the commit of a checkout, by dotted key."""


class HistoryStep(Frozen):
    """Lasting change of the level of a figure."""

    point: int
    """Index of the first point at the new level."""

    session: str
    """Session of the first point at the new level."""

    started_at: str
    """Start of the first point at the new level: UTC time, ISO 8601."""

    before: float
    """Median of the points between the previous step and this one."""

    after: float
    """Median of the points from this step to the next."""

    relative_change: float
    """New level divided by the old one, minus 1; 0.05 is 5 % more."""

    change: Change
    """Direction of the change: better, worse, or different if the figure has no better side."""

    p_value: float
    """Probability of an equally large step in a series without any step."""

    points_since: int
    """Number of points at the new level."""

    differing: tuple[Difference, ...]
    """Versions and machine properties that changed at the step."""

    @property
    def changed(self) -> list[str]:
        """Changed versions and machine properties as text, such as `torch 2.12 to 2.13`."""
        texts = (
            (
                differing.key,
                *("absent" if v is None else plain_value(v) for v in (differing.a, differing.b)),
            )
            for differing in self.differing
        )
        return [f"{key} {before} to {after}" for key, before, after in texts]


class History(StackRow, Document):
    """History of a figure in one series of sessions: its points, oldest first, and its steps."""

    scenario: str
    experiment_id: str
    """Id of the newest experiment."""

    series: str
    """Key of the series: its settings, stack, sweep point and kind of machine."""

    devices: tuple[str, ...]
    """Names of the devices."""

    figure: str
    """Name of the figure."""

    unit: str
    better: Better
    """Better direction of the figure: higher, lower, or neither."""

    points: tuple[HistoryPoint, ...]
    steps: tuple[HistoryStep, ...]

    saturated_since: str = ""
    """Id of the first session since which requests piled up in every session up to the newest;
    empty if there is none."""

    conclusion: str
    """Conclusion about the history in a sentence."""

    @property
    def tracked(self) -> Quantity:
        """Figure of the history, with its unit and better direction."""
        return Quantity(name=self.figure, unit=self.unit, better=self.better)

    @property
    def newest_step(self) -> HistoryStep | None:
        """The newest step, or None if there are no steps."""
        return self.steps[-1] if self.steps else None


class HistoryRun(NamedTuple):
    """Attempt of a run, reduced to what a history needs."""

    result: Result
    """Result of the run, without the reports of its ranks."""

    value: float | None
    """Value of the figure, or None if the run has no usable value."""

    saturated: bool = False
    """True if requests piled up, so that latencies grow with the duration of the run."""


def history_run(result: Result, figure: Quantity = TOKENS_PER_SECOND) -> HistoryRun:
    """Return a stored result reduced for a history, with the value of `figure`.

    The value is None if the run has no usable one. If requests arrive at a rate, their latency
    replaces figures computed from busy time, such as throughput.
    """
    name = compared_figure(figure, offered_rate(result.experiment.scenario)).name
    saturated = name == REQUEST_LATENCY.name and is_saturated(result)
    value = None if saturated else figures_of(result).get(name)
    return HistoryRun(result.model_copy(update={"ranks": ()}), value, saturated)


def histories(runs: Iterable[HistoryRun], figure: Quantity = TOKENS_PER_SECOND) -> list[History]:
    """Return the history of a figure in each series, the series with the most points first.

    Imported runs must be excluded beforehand.
    """
    series: dict[str, list[HistoryRun]] = {}
    for run in sorted(runs, key=_place):
        series.setdefault(run.result.experiment.series, []).append(run)
    newest = (PlannedSummary(experiment=own[-1].result.experiment) for own in series.values())
    named = tell_apart(
        [ExperimentRuns(planned, StopReason(Status.OK), {}, {}, {}) for planned in newest]
    )
    unsorted = [
        _history(group, figure, row.apart)
        for group, row in zip(series.values(), named, strict=True)
    ]
    return sorted(unsorted, key=lambda history: len(history.points), reverse=True)


def _place(run: HistoryRun) -> tuple[str, int, int]:
    return run.result.started_at, run.result.round, run.result.attempt


def _history(
    runs: Sequence[HistoryRun], figure: Quantity, apart: Mapping[str, JsonValue]
) -> History:
    newest = runs[-1].result.experiment
    figure = compared_figure(figure, offered_rate(newest.scenario))
    replaced = replaced_rounds([run.result for run in runs])
    commands: dict[str, list[HistoryRun]] = {}
    for run in runs:
        session = run.result.session
        if (session, run.result.round) not in replaced:
            # Looks of a gate are sessions of one command: their ids differ behind the dot.
            commands.setdefault(session.partition(".")[0], []).append(run)
    points = tuple(_point(session, own) for session, own in commands.items())
    steps = _steps(points, figure)
    name, since = label_of(newest, apart), _saturated_since(points)
    return History(
        scenario=newest.scenario.name,
        stack=newest.stack.name,
        sweep=newest.sweep,
        tag=newest.tag,
        apart=dict(apart),
        experiment_id=newest.id,
        series=newest.series,
        devices=planned_devices(newest),
        figure=figure.name,
        unit=figure.unit.replace("tokens", newest.scenario.counts),
        better=figure.better,
        points=points,
        steps=steps,
        saturated_since=since.session if since else "",
        conclusion=_conclusion(name, points, steps, figure) + _saturated(newest, points, since),
    )


def _point(session: str, runs: Sequence[HistoryRun]) -> HistoryPoint:
    """Return a history's point for the runs of one command, counting the last attempt of each run.

    `session` is the id of the command's first session.
    """
    last = {(run.result.session, run.result.round): run for run in runs}
    saturated = any(run.saturated for run in last.values())
    spoilt = saturated or any(run.result.status is Status.INVALID for run in last.values())
    counted = [run for run in last.values() if run.value is not None and not spoilt]
    values = tuple(run.value for run in counted if run.value is not None)
    return HistoryPoint(
        session=session,
        started_at=runs[0].result.started_at,
        runs=len(values),
        value=figure_interval(values),
        values=values,
        run_ids=tuple(run.result.run_id for run in counted),
        statuses=tuple(dict.fromkeys(run.result.status.value for run in last.values())),
        saturated=saturated,
        versions=_versions(runs[0].result.experiment),
    )


def _versions(experiment: Experiment) -> dict[str, JsonValue]:
    """Return the versions of an experiment's libraries and plugins by name; may be empty."""
    facts = experiment.identity.get("environment")
    if not isinstance(facts, Mapping):
        return {}
    versions = {name: facts.get(name) for name in ("python", "cuda", "driver") if facts.get(name)}
    for name in ("versions", "fingerprints", "distributions"):
        part = facts.get(name)
        if isinstance(part, Mapping):
            versions |= {str(key): value for key, value in part.items()}
    plugins = facts.get("plugins")
    for plugin in plugins if isinstance(plugins, Sequence) else ():
        if isinstance(plugin, Mapping):
            versions[f"{plugin.get('name')} (plugin)"] = plugin.get("version")
    return versions


def planned_devices(experiment: Experiment) -> tuple[str, ...]:
    """Return the names of the devices that an experiment was planned for; () if unknown."""
    facts = experiment.identity.get("environment")
    devices = facts.get("devices") if isinstance(facts, Mapping) else None
    return tuple(map(str, devices)) if isinstance(devices, list | tuple) else ()


def _steps(points: Sequence[HistoryPoint], figure: Quantity) -> tuple[HistoryStep, ...]:
    known = [(place, point.value.median) for place, point in enumerate(points) if point.value]
    if len(known) < FEWEST or min(value for _, value in known) <= 0:
        return ()
    steps = find_steps([math.log(value) for _, value in known])
    ends = [*(step.place for step in steps), len(known)][1:]
    changes = []
    for step, end in zip(steps, ends, strict=True):
        place, before = known[step.place][0], known[step.place - 1][0]
        differing = differing_keys(points[before].versions, points[place].versions)
        changes.append(
            HistoryStep(
                point=place,
                session=points[place].session,
                started_at=points[place].started_at,
                before=math.exp(step.before),
                after=math.exp(step.after),
                relative_change=math.expm1(step.size),
                change=change_of(figure, step.size),
                p_value=step.p_value,
                points_since=end - step.place,
                differing=tuple(Difference(key=key, a=a, b=b) for key, a, b in differing),
            )
        )
    return tuple(changes)


def _conclusion(
    name: str,
    points: Sequence[HistoryPoint],
    steps: Sequence[HistoryStep],
    figure: Quantity,
) -> str:
    """Return a sentence about a series: its newest step, or why there is none.

    `name` is the stack's label.
    """
    known = [point.value.median for point in points if point.value]
    what = f"{figure.name} of {name}"
    if len(known) < FEWEST:
        return f"{what}: {len(known)} of the {FEWEST} sessions that a search for steps needs"
    if min(known) <= 0:
        return f"{what}: {STEPS_ARE_RATIOS}"
    if not steps:
        return f"{what}: no step in {len(known)} sessions"
    newest = steps[-1]
    more = f"; {len(steps)} steps in all" if len(steps) > 1 else ""
    return (
        f"{what}: {_size(newest)} since session {newest.session} of {newest.started_at[:10]} "
        f"({newest.points_since} sessions; {_changes(newest)}){more}"
    )


def _saturated(
    experiment: Experiment, points: Sequence[HistoryPoint], since: HistoryPoint | None
) -> str:
    """Return a sentence on the sessions in which requests piled up, or an empty string.

    `since` is the first of the sessions that are all saturated up to the newest, or None.
    """
    full = sum(point.saturated for point in points)
    if not full:
        return ""
    rate = offered_rate(experiment.scenario)
    load = OfferedLoad(label_of(experiment), rate, saturated=True)
    worse = (
        f"; worse: every session since {since.session} of {since.started_at[:10]} is saturated, "
        "and earlier ones are not"
        if since
        else ""
    )
    return f"{worse}; {full} of {len(points)} sessions count for nothing: {saturation(load)}"


def _saturated_since(points: Sequence[HistoryPoint]) -> HistoryPoint | None:
    """Return the first of the saturated points that follow the last unsaturated point.

    Returns None if no point follows, or if no point is unsaturated. Points without a value are
    ignored.
    """
    known = [point for point in points if point.saturated or point.value]
    kept_up = [place for place, point in enumerate(known) if not point.saturated]
    newest = known[kept_up[-1] + 1 :] if kept_up else []
    return newest[0] if newest else None


def _size(step: HistoryStep) -> str:
    direction = "more" if step.relative_change > 0 else "less"
    word = "" if step.change == "different" else f", {step.change}"
    return f"{percent(abs(step.relative_change))} {direction}{word}"


def _changes(step: HistoryStep) -> str:
    changed = step.changed
    return f"changed there: {join_names(changed)}" if changed else "no version changed there"

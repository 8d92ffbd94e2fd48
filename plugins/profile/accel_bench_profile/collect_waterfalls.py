"""Comparison of two profiled stacks, from one session or from two sessions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from accel_bench.analysis.aggregate import ExperimentRuns, collect_experiments
from accel_bench.analysis.metrics.throughput import unit_of
from accel_bench.analysis.statistics.verdict import RoundKey
from accel_bench.analysis.tables.listing import differing_keys
from accel_bench.analysis.wording import StackAtPoint, label, plain_value, point_name
from accel_bench.documents.canonical import canonical_json
from accel_bench.errors import AccelBenchError
from accel_bench.result import Result
from accel_bench.scenario.experiment import Experiment
from accel_bench_profile.figures.inflation import ProfiledRun
from accel_bench_profile.figures.schema import PROFILE_FOLDER, RankProfile, read_profile
from accel_bench_profile.figures.waterfall import ProfiledStack, profile_waterfall
from accel_bench_profile.figures.waterfall_schema import ProfileWaterfall, WaterfallReport
from accel_bench_profile.ledger.difference import settings_notes


class Side(NamedTuple):
    """One of two compared stacks, with the results of the session that profiled this stack."""

    results: Sequence[Result]
    stack: str

    name: str = ""
    """Label of the stack in printed text; empty to print the stack's name."""

    def by_point(self) -> dict[str, ExperimentRuns]:
        """Return the stack's runs by sweep point."""
        rows = collect_experiments(self.results)
        experiments = [(row, row.planned.experiment) for row in rows]
        return {
            canonical_json(experiment.sweep): row
            for row, experiment in experiments
            if experiment.stack.name == self.stack
        }


def collect_waterfalls(root: Path, a: Side, b: Side) -> WaterfallReport:
    """Return for each sweep point a waterfall, which divides the change of step time from A to B.

    It divides the change by module and by kind of operation. A sweep point that cannot be compared
    gets a reason instead. `root` is the results folder. Rounds of two sessions are paired by
    number.
    """
    of_a, of_b = a.by_point(), b.by_point()
    if len(of_a) == len(of_b) == 1:  # Two scenarios may sweep different things.
        of_b = dict(zip(of_a, of_b.values(), strict=True))
    waterfalls, missing = [], []
    for point in {**of_a, **of_b}:
        rows = of_a.get(point), of_b.get(point)
        if rows[0] is None or rows[1] is None:
            missing.append(_not_run(rows, a, b))
            continue
        made = _waterfall(root, rows[0], rows[1], (a.name or a.stack, b.name or b.stack))
        if isinstance(made, str):
            missing.append(made)
        else:
            waterfalls.append(made)
    return WaterfallReport(waterfalls=tuple(waterfalls), missing=tuple(missing))


def _waterfall(
    root: Path, a: ExperimentRuns, b: ExperimentRuns, names: tuple[str, str]
) -> ProfileWaterfall | str:
    """Return the waterfall of one sweep point, or the reason why it has none.

    `a` and `b` are the runs of both stacks at the point, and `names` are the printed names.
    """
    for row in (a, b):
        if not row.usable:
            reasons = "; ".join(row.ending.reasons)
            return f"{row.name} {row.how_it_ended}" + (f": {reasons}" if reasons else "")
    tokens, unit = unit_of([_step_tokens(row) for row in (a, b)])
    sessions, others = ({session for session, _ in row.speeds} for row in (a, b))
    apart = not sessions & others
    try:
        stacks = [
            ProfiledStack(name, _profiled_runs(root, row, tokens, apart))
            for row, name in zip((a, b), names, strict=True)
        ]
    except AccelBenchError as error:  # A profile that this version cannot read.
        return str(error)
    experiments = [row.planned.experiment for row in (a, b)]
    scenarios = dict.fromkeys(experiment.scenario.name for experiment in experiments)
    sweep = point_name(experiments[0])
    made = profile_waterfall(stacks[0], stacks[1], ", ".join(scenarios), unit, sweep)
    if made is None:
        return f"{names[0]} to {names[1]}: no round in which both left their profiles"
    runs = (run for row in (a, b) for run in row.completed.values())
    folders = tuple(dict.fromkeys(str((root / run.folder).parent) for run in runs))
    differing = _differing_settings(experiments) if apart else ()
    return made.model_copy(update={"folders": folders, "notes": (*differing, *made.notes)})


def _differing_settings(experiments: Sequence[Experiment]) -> tuple[str, ...]:
    """Return a tuple of one sentence on the settings in which two scenarios differ, or of none."""
    a, b = (
        experiment.scenario.model_dump(mode="json", exclude={"name", "description"})
        for experiment in experiments
    )
    settings = [
        f"{key} {plain_value(before)} -> {plain_value(after)}"
        for key, before, after in differing_keys(a, b)
    ]
    return tuple(settings_notes(settings))


def _profiled_runs(
    root: Path, row: ExperimentRuns, tokens: float, apart: bool
) -> dict[RoundKey, ProfiledRun]:
    """Return a stack's profiled runs at one sweep point, by session and round.

    If `apart` is true, the key has no session, since each stack has its own. `tokens` is the number
    of tokens to which the seconds of a run refer.
    """
    runs = {}
    for key, speed in row.speeds.items():
        profiles = _profiles(root, row.completed[key])
        ranks = [profile.modules for profile in profiles if profile.modules is not None]
        if ranks:
            plain = [
                median(s.seconds for s in profile.scalars)
                for profile in profiles
                if profile.scalars
            ]
            preempted = [
                profile.host.preempted_seconds or 0.0 for profile in profiles if profile.host
            ]
            runs["" if apart else key[0], key[1]] = ProfiledRun(
                seconds=speed.seconds_per_token * tokens,
                window_step_seconds=speed.seconds / len(speed.step_seconds),
                ranks=ranks,
                plain_seconds=fmean(plain) if plain else None,
                preempted_seconds=fmean(preempted) if preempted else 0.0,
            )
    return runs


def _profiles(root: Path, run: Result) -> list[RankProfile]:
    """Return the profiles of all ranks of a run; empty if any rank has no recorded step."""
    folder = root / run.folder / PROFILE_FOLDER
    profiles = [read_profile(folder / f"rank{rank.rank}") for rank in run.ranks]
    recorded = [
        profile for profile in profiles if profile is not None and profile.modules is not None
    ]
    return recorded if len(recorded) == len(run.ranks) else []


def _step_tokens(row: ExperimentRuns) -> float:
    """Return the number of tokens without padding in a step on all ranks, averaged over runs."""
    steps = sum(len(speed.step_seconds) for speed in row.speeds.values())
    return sum(speed.real_tokens for speed in row.speeds.values()) / steps


def _not_run(rows: tuple[ExperimentRuns | None, ExperimentRuns | None], a: Side, b: Side) -> str:
    """Return a sentence on a sweep point that only one of the stacks A and B has.

    `rows` are the runs of A and of B; the missing one is None.
    """
    there = next(row for row in rows if row is not None)
    left = a if rows[0] is None else b
    point = there.planned.experiment
    name = label(StackAtPoint(left.name or left.stack, point.sweep, point.tag))
    return f"{name}: was not run"

"""Collect what two profiled stacks of a session have left, and compare them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

from accel_bench.analysis.aggregate import ExperimentRuns, collect_experiments
from accel_bench.analysis.metrics.throughput import RunThroughput
from accel_bench.analysis.metrics.waterfall import unit_of
from accel_bench.analysis.profiles.inflation import ProfiledRun
from accel_bench.analysis.profiles.reading import read_profile
from accel_bench.analysis.profiles.schema import RankProfile
from accel_bench.analysis.profiles.waterfall import ProfiledStack, profile_waterfall
from accel_bench.analysis.profiles.waterfall_schema import ProfileWaterfall, WaterfallReport
from accel_bench.analysis.wording import label, settings
from accel_bench.documents.canonical import canonical_json
from accel_bench.errors import AccelBenchError
from accel_bench.job import PROFILE_FOLDER
from accel_bench.result import Result


def collect_waterfalls(root: Path, results: Sequence[Result], a: str, b: str) -> WaterfallReport:
    """Return a waterfall from stack A to B for each sweep point, and why there is none for others.

    `root` is the results folder.
    """
    points: dict[str, dict[str, ExperimentRuns]] = {}
    for row in collect_experiments(results):
        experiment = row.planned.experiment
        points.setdefault(canonical_json(experiment.sweep), {})[experiment.stack.name] = row
    found, missing = [], []
    for rows in points.values():
        made = _waterfall(root, rows[a], rows[b]) if {a, b} <= set(rows) else _not_run(rows, a, b)
        if isinstance(made, str):
            missing.append(made)
        else:
            found.append(made)
    return WaterfallReport(waterfalls=tuple(found), missing=tuple(missing))


def _waterfall(root: Path, a: ExperimentRuns, b: ExperimentRuns) -> ProfileWaterfall | str:
    """Return the waterfall of one sweep point, or why there is none."""
    for row in (a, b):
        if not row.usable:
            reasons = "; ".join(row.ending.reasons)
            return f"{row.name} {row.how_it_ended}" + (f": {reasons}" if reasons else "")
    tokens, unit = unit_of([_step_tokens(row) for row in (a, b)])
    try:
        stacks = [_stack(root, row, tokens) for row in (a, b)]
    except AccelBenchError as error:  # A profile that this version cannot read.
        return str(error)
    experiment = a.planned.experiment
    sweep = settings(experiment.sweep)
    made = profile_waterfall(stacks[0], stacks[1], experiment.scenario.name, unit, sweep)
    return made or f"{a.name} to {b.name}: no round in which both left their profiles"


def _stack(root: Path, row: ExperimentRuns, tokens: float) -> ProfiledStack:
    runs = {}
    for key, speed in row.speeds.items():
        profiles = _profiles(root, row.completed[key])
        ranks = [one.modules for one in profiles if one.modules is not None]
        if ranks:
            plain = [median(s.seconds for s in one.scalars) for one in profiles if one.scalars]
            taken = [one.host.preempted_seconds or 0.0 for one in profiles if one.host is not None]
            runs[key] = ProfiledRun(
                seconds=speed.seconds_per_token * tokens,
                window_step_seconds=speed.seconds / len(speed.step_seconds),
                ranks=ranks,
                plain_seconds=fmean(plain) if plain else None,
                taken_seconds=fmean(taken) if taken else 0.0,
            )
    return ProfiledStack(row.planned.experiment.stack.name, runs)


def _profiles(root: Path, run: Result) -> list[RankProfile]:
    """Return what all ranks of a run have left; nothing where one has no recorded step."""
    folder = root / run.folder / PROFILE_FOLDER
    profiles = [read_profile(folder / f"rank{rank.rank}") for rank in run.ranks]
    found = [one for one in profiles if one is not None and one.modules is not None]
    return found if len(found) == len(run.ranks) else []


def _step_tokens(row: ExperimentRuns) -> float:
    """Return the real tokens of a step of all ranks, the mean over runs."""
    speeds: list[RunThroughput] = list(row.speeds.values())
    steps = sum(len(speed.step_seconds) for speed in speeds)
    return sum(speed.real_tokens for speed in speeds) / steps


def _not_run(rows: dict[str, ExperimentRuns], a: str, b: str) -> str:
    sweep = next(iter(rows.values())).planned.experiment.sweep
    left = [name for name in (a, b) if name not in rows]
    return f"{label(' and '.join(left), sweep)}: was not run"

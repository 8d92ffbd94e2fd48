"""A race of stacks: drop those that are surely not the best, and spend no more rounds on them.

The rounds are looked at after 5, 10, 20, ... of them. A stack is dropped when another one, which
trains the same as the baseline, is surely faster by more than the practical floor: by the rule of
the gate, at the level of the look, and divided by the number of rivals that it has. So the best
stack of a sweep point is dropped in at most 0.5 % of races, over all looks and rivals together
(alpha spending with Bonferroni's inequality, as `statistics.sequential` describes it).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from accel_bench.analysis.aggregate import ExperimentRuns
from accel_bench.analysis.checks.comparability import comparability_of_rounds
from accel_bench.analysis.checks.training import compare_training
from accel_bench.analysis.race_schema import RaceDrop
from accel_bench.analysis.statistics.estimators import log_interval
from accel_bench.analysis.statistics.sequential import is_slower, look_sizes
from accel_bench.analysis.statistics.verdict import (
    MINIMUM_ROUNDS,
    PRACTICAL_FLOOR,
    RoundKey,
    paired_logs,
)
from accel_bench.result import Result

Times = Mapping[RoundKey, float]
"""Seconds per token of the runs of a stack."""

Eligible = Callable[[str, Sequence[RoundKey]], bool]
"""Whether a stack may drop others, by what these rounds show of its training."""


def race_looks(rounds: int) -> tuple[int, ...]:
    """Return the numbers of rounds after which stacks may be dropped: 5, 10, 20, ..."""
    return tuple(size for size in look_sizes(MINIMUM_ROUNDS, rounds) if size < rounds)


def run_race(
    times: Mapping[str, Times], baseline: str, rounds: int, eligible: Eligible
) -> list[RaceDrop]:
    """Return the stacks that are dropped, by all rounds so far; the baseline never is.

    A look is taken once so many rounds are complete in every stack that is still in the race, and
    always at the same rounds, whatever comes later.
    """
    alive = [name for name in times if times[name]]
    drops: list[RaceDrop] = []
    for look, size in enumerate(race_looks(rounds), 1):
        keys = _complete([times[name] for name in alive])[:size]
        if len(keys) < size:
            break
        here = {name: {key: times[name][key] for key in keys} for name in alive}
        rivals = [name for name in alive if name == baseline or eligible(name, keys)]
        for name in [one for one in alive if one != baseline]:
            others = [one for one in rivals if one != name]
            if drop := _drop(name, others, here, look, len(times) - 1):
                drops.append(drop)
        gone = {drop.stack for drop in drops}
        alive = [name for name in alive if name not in gone]
    return drops


def _drop(
    name: str, rivals: Sequence[str], times: Mapping[str, Times], look: int, compared: int
) -> RaceDrop | None:
    """Return that a stack is surely slower than the rival that is furthest ahead of it."""
    found = [(paired_logs(times[rival], times[name]), rival) for rival in rivals]
    sure = [
        (fmean(logs), logs, rival)
        for logs, rival in found
        if is_slower(logs, PRACTICAL_FLOOR, look, compared)
    ]
    if not sure:
        return None
    _, logs, rival = min(sure)
    speed = log_interval(logs)
    assert speed is not None
    return RaceDrop(stack=name, after=len(logs), rival=rival, ratio=speed)


def _complete(times: Sequence[Times]) -> list[RoundKey]:
    """Return the rounds that all of them have, in the order in which they were run."""
    return [key for key in (times[0] if times else ()) if all(key in one for one in times)]


def race_point(rows: Sequence[ExperimentRuns], baseline: str, rounds: int) -> list[RaceDrop]:
    """Return the stacks of a sweep point that are dropped, by the runs so far."""
    by_name = {row.planned.experiment.stack.name: row for row in rows}
    base = by_name.get(baseline)
    if base is None or not base.usable:
        return []
    times = {name: row.seconds_per_token if row.usable else {} for name, row in by_name.items()}

    def eligible(name: str, keys: Sequence[RoundKey]) -> bool:
        chosen: list[dict[RoundKey, Result]] = [
            {key: row.completed[key] for key in keys} for row in (base, by_name[name])
        ]
        training = compare_training(*chosen)
        other = training.not_the_same or training.update_missing
        return not other and comparability_of_rounds(*chosen).comparable

    drops = run_race(times, baseline, rounds, eligible)
    return [_with_savings(drop, by_name[drop.stack], rounds) for drop in drops]


def _with_savings(drop: RaceDrop, row: ExperimentRuns, rounds: int) -> RaceDrop:
    seconds = [run.seconds for run in row.completed.values()]
    saved = max(0, rounds - len(seconds))
    return drop.model_copy(
        update={
            "sweep": row.planned.experiment.sweep,
            "runs_saved": saved,
            "seconds_saved": saved * fmean(seconds),
        }
    )

"""A race of stacks: stacks that are significantly worse than another get no further rounds.

Results are judged after 5, 10, 20, ... rounds; each such interim analysis is called a look. A stack
is dropped if another stack with equivalent training is significantly faster, and estimated to be
faster by more than the practical floor. The test is the gate's, but with the error rate of the look
divided by the number of rivals. So the best stack of a sweep point is dropped in at
most 0.5 % of races, over all looks and rivals together (alpha spending with Bonferroni's
inequality, as in `statistics.sequential`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import fmean

from accel_bench.analysis.aggregate import ExperimentRuns
from accel_bench.analysis.checks.audit import audit_failures
from accel_bench.analysis.checks.comparability import comparability_of_rounds
from accel_bench.analysis.checks.training import compare_training
from accel_bench.analysis.metrics.offered_load import is_saturated
from accel_bench.analysis.metrics.throughput import run_throughput
from accel_bench.analysis.quantity import compared_quantity
from accel_bench.analysis.race import ENDS_A_STACK, RaceDrop, race_looks
from accel_bench.analysis.statistics.verdict import Policy, RoundKey, compare
from accel_bench.result import Result

Times = Mapping[RoundKey, float]
"""Compared cost of a stack by run, lower is better, such as seconds per token."""

Eligible = Callable[[str, Sequence[RoundKey]], bool]
"""Function that returns whether a stack's speed in these rounds may exclude other stacks."""


def run_race(
    times: Mapping[str, Times],
    baseline: str,
    rounds: int,
    eligible: Eligible,
    failed: Collection[str] = (),
) -> list[RaceDrop]:
    """Return the stacks other than the baseline that get no further rounds, by all rounds so far.

    `times` are the compared costs by stack, and `rounds` is the number of planned rounds. Each look
    (interim analysis) uses the same rounds of all stacks, once all have completed them. Stacks in
    `failed` leave the race at the first look for which they lack rounds; stacks that were excluded
    because of them stay excluded.
    """
    alive = [name for name in times if times[name]]
    drops: list[RaceDrop] = []
    for look, size in enumerate(race_looks(rounds), 1):
        keys = _complete([times[name] for name in alive])[:size]
        if len(keys) < size:
            alive = [name for name in alive if name not in failed]
            keys = _complete([times[name] for name in alive])[:size]
        if len(keys) < size or baseline not in alive:
            break
        here = {name: {key: times[name][key] for key in keys} for name in alive}
        rivals = [name for name in alive if eligible(name, keys)]
        for name in [stack for stack in alive if stack != baseline]:
            others = [stack for stack in rivals if stack != name]
            if drop := _drop(name, others, here, look, len(times) - 1):
                drops.append(drop)
        gone = {drop.stack for drop in drops}
        alive = [name for name in alive if name not in gone]
    return drops


def _drop(
    name: str, rivals: Sequence[str], times: Mapping[str, Times], look: int, compared: int
) -> RaceDrop | None:
    """Return why the stack `name` gets no further rounds: the rival that it is slower than.

    Returns None if no rival is significantly faster. `look` is the number of the interim analysis,
    from 1, and `compared` the number of rivals that share the error rate of that analysis.
    """
    policy = Policy(points=compared, looks=look)
    results = {rival: compare(times[rival], times[name], policy) for rival in rivals}
    sure = [
        (result.ratio.median, rival)
        for rival, result in results.items()
        if result.ratio and result.verdict == "worse"
    ]
    if not sure:
        return None
    _, rival = min(sure)
    return RaceDrop(stack=name, rival=rival, **dict(results[rival]))


def _complete(times: Sequence[Times]) -> list[RoundKey]:
    """Return the rounds that all stacks have completed, in the first stack's order."""
    return [key for key in (times[0] if times else ()) if all(key in costs for costs in times)]


def race_point(rows: Sequence[ExperimentRuns], baseline: str, rounds: int) -> list[RaceDrop]:
    """Return the stacks that get no further rounds at a sweep point, judged by its runs so far.

    `rows` has each stack's runs, and `rounds` is the number of planned rounds. The list is empty if
    there is no baseline, or if the stacks differ in request rate.
    """
    by_name = {row.planned.experiment.stack.name: row for row in rows}
    if baseline not in by_name or len({row.rate for row in rows}) > 1:
        return []
    sound = {name: _sound(row) for name, row in by_name.items()}
    times = {name: {key: pair[1] for key, pair in runs.items()} for name, runs in sound.items()}

    def eligible(name: str, keys: Sequence[RoundKey]) -> bool:
        chosen: list[dict[RoundKey, Result]] = [
            {key: sound[stack][key][0] for key in keys} for stack in (baseline, name)
        ]
        if any(map(is_saturated, chosen[1].values())):
            return False  # How late it answers says how long was measured.
        if name == baseline:
            return True
        training = compare_training(*chosen)
        other = training.not_the_same or training.untested
        return not other and comparability_of_rounds(*chosen).comparable

    drops: dict[str, RaceDrop] = {}
    for so_far in _after_each_session(rows):
        known = {
            name: {key: time for key, time in own.items() if key[0] in so_far}
            for name, own in times.items()
        }
        racing = {name: {} if name in drops else own for name, own in known.items()}
        failed = [n for n, row in by_name.items() if not row.usable or _ended(row, so_far)]
        for drop in run_race(racing, baseline, rounds, eligible, failed):
            drops[drop.stack] = drop
    return [_with_savings(drop, by_name[drop.stack], rounds) for drop in drops.values()]


def _after_each_session(rows: Sequence[ExperimentRuns]) -> list[set[str]]:
    """Return a set for each session in order: its id and the ids of all earlier sessions.

    A race is judged by each set of sessions in turn. Later sessions may repeat failed runs, and
    have no rounds of excluded stacks; they thus cannot reinstate an excluded stack.
    """
    runs = (run for row in rows for run in row.counted.values())
    order = list(dict.fromkeys(run.session for run in sorted(runs, key=lambda run: run.started_at)))
    return [{*order[: number + 1]} for number in range(len(order))]


def _sound(row: ExperimentRuns) -> dict[RoundKey, tuple[Result, float]]:
    """Return a stack's valid, locally measured runs by round, each with its cost to compare.

    The dictionary is empty if the costs cannot be compared.
    """
    kept = {
        key: run
        for key, run in row.counted.items()
        if run.status.completed and not run.imported and not audit_failures(run)
    }
    measured = {key: run_throughput(run) for key, run in kept.items()}
    speeds = {key: speed for key, speed in measured.items() if speed}
    quantity = compared_quantity(row.planned.experiment.scenario, kept, speeds)
    costs = {} if quantity.obstacle else quantity.costs
    return {key: (kept[key], cost) for key, cost in costs.items() if key in speeds}


def _ended(row: ExperimentRuns, sessions: Collection[str]) -> bool:
    """Return whether the stack's last run in these sessions has a status that ends its rounds."""
    statuses = [run.status for key, run in row.counted.items() if key[0] in sessions]
    return bool(statuses) and statuses[-1] in ENDS_A_STACK


def _with_savings(drop: RaceDrop, row: ExperimentRuns, rounds: int) -> RaceDrop:
    seconds = [run.seconds for run in row.counted.values() if run.status.completed]
    saved = max(0, rounds - len(seconds))
    return drop.model_copy(
        update={
            "sweep": row.planned.experiment.sweep,
            "quantity": row.quantity.without_costs,
            "runs_saved": saved,
            "seconds_saved": saved * fmean(seconds),
        }
    )

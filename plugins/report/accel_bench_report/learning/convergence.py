"""Learning of stored experiments: computation of the document of `results convergence`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median, stdev

from accel_bench.analysis.aggregate import ExperimentRuns
from accel_bench.analysis.learning.curves import Reached
from accel_bench.analysis.metrics.hourly_rate import HourlyRate
from accel_bench.analysis.statistics.estimators import Interval, geometric_interval
from accel_bench.analysis.statistics.verdict import Comparison
from accel_bench.result import Evaluation, Result
from accel_bench_report.learning.bootstrap import bootstrap_ends
from accel_bench_report.learning.curve_points import reached_after
from accel_bench_report.learning.groups import LearningGroup, lasts, learning_groups
from accel_bench_report.learning.growth import memory_growth
from accel_bench_report.learning.rates import best_learning_rates
from accel_bench_report.learning.schema import (
    ConvergenceDocument,
    CurvePoint,
    EvaluationSpeed,
    ExperimentLearning,
    Stability,
    ToLoss,
)
from accel_bench_report.learning.to_loss import Found, amounts_of, race, to_loss
from accel_bench_report.tables.expenses import machines_paid

MOST_POINTS = 40
"""Maximum number of points of a shown curve, evenly spaced."""

MINIMUM_SEEDS = 3
"""Minimum number of seeds for a spread of final losses."""


def converge(
    experiments: Sequence[ExperimentRuns],
    baselines: Mapping[str, str],
    loss: float | None = None,
    tariff: HourlyRate | None = None,
    instances: int | None = None,
) -> ConvergenceDocument:
    """Return the learning curves, comparisons and stability of experiments.

    `loss` is the loss to reach, and `baselines` maps session ids to names of baselines. `tariff` is
    the price of a machine-hour, and `instances` the number of machines; None derives it from the
    devices.
    """
    groups = learning_groups(experiments)
    usd = [_usd_per_hour(group, tariff, instances) for group in groups]
    reached: Sequence[ToLoss | None] = [None] * len(groups)
    if loss is not None:
        amounts = [amounts_of(group, loss) for group in groups]
        races = _races(groups, amounts, baselines)
        reached = [
            to_loss(own, loss, price, raced)
            for own, price, raced in zip(amounts, usd, races, strict=True)
        ]
    rows = [_row(*each) for each in zip(groups, usd, reached, strict=True)]
    return ConvergenceDocument(
        tariff=tariff,
        loss=loss,
        experiments=tuple(rows),
        learning_rates=best_learning_rates(groups),
    )


def curve_of(group: LearningGroup, usd_per_hour: float | None) -> tuple[CurvePoint, ...]:
    """Return the mean learning curve of a group's runs, up to the step at which the shortest ends.

    Its points are at the steps of the shortest run; the curves of other runs are interpolated.
    Without `usd_per_hour` the points have no dollars.
    """
    curves = [curve for cluster in group.clusters for curve in cluster]
    first = max((curve[0].steps for curve in curves), default=0)
    shortest = min(curves, key=lambda curve: curve[-1].steps, default=[])
    steps = [point.steps for point in shortest if point.steps >= first]
    if len(steps) > MOST_POINTS:
        last = len(steps) - 1
        steps = [steps[round(i * last / (MOST_POINTS - 1))] for i in range(MOST_POINTS)]
    return tuple(_point(_reached(group, count), usd_per_hour) for count in steps)


def _reached(group: LearningGroup, steps: int) -> list[list[Reached]]:
    """Return for each seed the points after `steps` steps of those curves that are long enough."""
    clusters = [[reached_after(curve, steps) for curve in cluster] for cluster in group.clusters]
    return [[point for point in cluster if point is not None] for cluster in clusters]


def _point(clusters: Sequence[Sequence[Reached]], usd_per_hour: float | None) -> CurvePoint:
    every = [point for cluster in clusters for point in cluster]
    seconds = median(point.seconds for point in every)
    known = [[point.loss for point in cluster if point.loss is not None] for cluster in clusters]
    whole = sum(map(len, known)) == len(every)
    ends = bootstrap_ends(known, fmean) if whole and len(known) > 1 else None
    low, high = ends or (None, None)
    return CurvePoint(
        steps=every[0].steps,
        tokens=median(point.tokens for point in every),
        seconds=seconds,
        usd=None if usd_per_hour is None else seconds * usd_per_hour / 3600,
        loss=fmean(loss for cluster in known for loss in cluster) if whole else None,
        low=low,
        high=high,
    )


def _row(group: LearningGroup, usd: float | None, reached: ToLoss | None) -> ExperimentLearning:
    return ExperimentLearning(
        scenario=group.scenario,
        stack=group.stack,
        sweep=group.sweep,
        tag=group.tag,
        apart=group.apart,
        experiments=tuple(seed.row.planned.experiment.id for seed in group.seeds),
        runs=len(group.runs),
        loss_kind=group.loss_kind,
        usd_per_hour=usd,
        curve=curve_of(group, usd),
        to_loss=reached,
        stability=stability_of(group),
        memory_growth=memory_growth(group),
        evaluation=evaluation_speed(group.runs),
        notes=tuple(_notes(group)),
    )


def _notes(group: LearningGroup) -> list[str]:
    rows = (seed.row for seed in group.seeds)
    return list(dict.fromkeys(f"{row.name} {row.how_it_ended}" for row in rows if not row.usable))


def _races(
    groups: Sequence[LearningGroup], found: Sequence[Found], baselines: Mapping[str, str]
) -> list[Comparison | None]:
    """Return for each group the comparison of its time to the loss with its baseline's time.

    `found` has for each group the steps, tokens and seconds that its runs used until that loss. The
    comparison is None for a baseline, and empty for a group without a baseline.
    """
    bases = [_baseline_of(group, groups, baselines) for group in groups]
    races = [
        None if base is group else Comparison() for group, base in zip(groups, bases, strict=True)
    ]
    for place, base in enumerate(groups):
        stacks = {
            str(number): found[number]
            for number, group in enumerate(groups)
            if bases[number] is base and group is not base
        }
        for number, raced in race(found[place], stacks).items():
            races[int(number)] = raced
    return races


def _baseline_of(
    group: LearningGroup, groups: Sequence[LearningGroup], baselines: Mapping[str, str]
) -> LearningGroup | None:
    """Return the baseline's group at the sweep point and in a session of `group`, or None."""
    names = {baselines.get(session) for session in group.sessions}
    alike = (other for other in groups if other.point == group.point and other.stack in names)
    return next((other for other in alike if group.sessions & other.sessions), None)


def _usd_per_hour(
    group: LearningGroup, tariff: HourlyRate | None, instances: int | None
) -> float | None:
    if tariff is None:
        return None
    return tariff.usd_per_hour * machines_paid(group.seeds[0].row, tariff, instances)


def evaluation_speed(runs: Sequence[Result]) -> EvaluationSpeed | None:
    """Return the speed of evaluation on held-out samples; None if no run evaluated."""
    evaluated = [evaluations for run in runs if (evaluations := _evaluations(run))]
    if not evaluated:
        return None
    first, last = ([own[place] for own in evaluated] for place in (0, -1))
    return EvaluationSpeed(
        samples=max(samples for samples, _, _ in last),
        samples_per_second=geometric_interval([samples / s for samples, _, s in last]),
        tokens_per_second=geometric_interval([tokens / s for _, tokens, s in last]),
        first_samples_per_second=geometric_interval([samples / s for samples, _, s in first]),
    )


def _evaluations(run: Result) -> list[tuple[int, int, float]]:
    """Return samples, real tokens and the slowest rank's seconds of each evaluation.

    The list is empty if a rank recorded no learning.
    """
    ranks = [rank.learning.evaluations for rank in run.ranks if rank.learning]
    data = [rank.learning.evaluations for rank in run.data_ranks if rank.learning]
    if len(ranks) < len(run.ranks):
        return []

    def summed(place: int) -> tuple[int, int, float]:
        every: list[Evaluation] = [rank[place] for rank in data]
        seconds = max(rank[place].seconds for rank in ranks)
        samples = sum(evaluation.sequences for evaluation in every)
        return samples, sum(evaluation.real_tokens for evaluation in every), max(seconds, 1e-9)

    return [summed(place) for place in range(min(map(len, ranks), default=0))]


def stability_of(group: LearningGroup) -> Stability:
    """Return the spread of a group's final losses over seeds, and its number of diverged seeds."""
    ends = [loss for _, loss in lasts(group)]
    return Stability(
        seeds=len(group.seeds),
        diverged=sum(seed.diverged for seed in group.seeds),
        mean=fmean(ends) if ends else None,
        lowest=min(ends, default=None),
        highest=max(ends, default=None),
        standard_deviation=_spread(ends),
    )


def _spread(ends: Sequence[float]) -> Interval | None:
    """Return the standard deviation of final losses with its 95 % chi-squared interval.

    None for fewer than three seeds. A bootstrap of so few losses would often resample equal values,
    and start its interval at 0.
    """
    from scipy.special import chdtri

    if len(ends) < MINIMUM_SEEDS:
        return None
    spread, freedom = stdev(ends), len(ends) - 1
    low, high = (spread * math.sqrt(freedom / chdtri(freedom, tail)) for tail in (0.025, 0.975))
    return Interval(median=spread, low=low, high=high)

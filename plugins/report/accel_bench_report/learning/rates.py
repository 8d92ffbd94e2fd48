"""The learning rate with the lowest final loss, and its statistical significance.

Rates are compared between experiments that differ only in learning rate and seed, after the same
number of steps. The loss between two points of a curve is interpolated; another rate then counts as
worse than the best one only if its losses at both points are higher. A rate is the best if the t
bounds of its differences from all other rates, paired by seed, exclude 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from accel_bench.analysis.aggregate import SEED_KEYS
from accel_bench.analysis.learning.curves import Reached
from accel_bench.analysis.statistics.estimators import t_bound
from accel_bench.documents.canonical import canonical_json
from accel_bench_report.learning.bootstrap import bootstrap_ends
from accel_bench_report.learning.curve_points import points_around, reached_after
from accel_bench_report.learning.groups import LearningGroup, identity_without
from accel_bench_report.learning.schema import BestLearningRate, RateLearning

RATE = "train.learning_rate"

MINIMUM_SEEDS = 3
"""Minimum number of seeds of every learning rate for a verdict on the best rate."""

ERROR = 0.05
"""Maximum probability of calling a wrong rate the best, divided among the other rates."""

Losses = Mapping[str, float]
"""Final loss by seed."""


def best_learning_rates(groups: Sequence[LearningGroup]) -> tuple[BestLearningRate, ...]:
    """Return the best learning rate of each set of groups that differ in learning rate only.

    Sets with a single learning rate are left out.
    """
    sets: dict[str, list[LearningGroup]] = {}
    for group in groups:
        others = {key: value for key, value in group.sweep.items() if key != RATE}
        rest = identity_without(group.seeds[0].row, (RATE, *SEED_KEYS))
        key = canonical_json([group.scenario, group.stack, others, rest])
        sets.setdefault(key, []).append(group)
    return tuple(_best(own) for own in sets.values() if len({*map(rate_of, own)}) > 1)


def rate_of(group: LearningGroup) -> float:
    """Return the learning rate of a group."""
    return group.seeds[0].row.planned.experiment.scenario.train.learning_rate


def _best(groups: Sequence[LearningGroup]) -> BestLearningRate:
    ordered = sorted(groups, key=rate_of)
    curves = [curve for group in ordered for cluster in group.clusters for curve in cluster]
    # A curve that broke off, as of a rate that diverged, shortens no other.
    steps = min((curve[-1].steps for curve in curves), default=0)
    losses = [_losses(group, steps) for group in ordered]
    # A rate with which a seed diverged or failed is not judged by the others.
    whole = [not any(seed.diverged for seed in group.seeds) and len(own) == len(group.seeds)
             for group, own in zip(ordered, losses, strict=True)]  # fmt: skip
    rates = tuple(
        _rate(group, own if fine else {})
        for group, own, fine in zip(ordered, losses, whole, strict=True)
    )
    trained = [number for number, rate in enumerate(rates) if rate.loss is not None]
    best = min(trained, key=lambda number: rates[number].loss or 0.0, default=None)
    others = [_least_losses(ordered[number], steps) for number in trained if number != best]
    first = ordered[0]
    return BestLearningRate(
        scenario=first.scenario,
        stack=first.stack,
        sweep={key: value for key, value in first.sweep.items() if key != RATE},
        apart={key: value for key, value in first.apart.items() if key != RATE},
        loss_kind=first.loss_kind,
        steps=steps,
        best=None if best is None else rates[best].learning_rate,
        verdict="holds" if best is not None and is_best(losses[best], others) else "inconclusive",
        at_end=best in (0, len(rates) - 1),
        rates=rates,
    )


def is_best(best: Losses, others: Sequence[Losses]) -> bool:
    """Return whether the losses `best` are significantly lower than all `others`, paired by seed.

    False with fewer than three seeds. `others` is empty if all other rates diverged.
    """
    for other in others:
        differences = [other[seed] - loss for seed, loss in best.items() if seed in other]
        if len(differences) < MINIMUM_SEEDS:
            return False
        if fmean(differences) <= t_bound(differences, 1 - ERROR / len(others)):
            return False
    return len(best) >= MINIMUM_SEEDS


def _losses(group: LearningGroup, steps: int) -> dict[str, float]:
    """Return the loss after `steps` steps by seed, from the first round of each seed."""
    losses = {}
    for seed, curve in _first_curves(group):
        reached = reached_after(curve, steps)
        if reached is not None and reached.loss is not None:
            losses[seed] = reached.loss
    return losses


def _least_losses(group: LearningGroup, steps: int) -> dict[str, float]:
    """Return for each seed the lower loss of the two curve points around `steps`."""
    least = {}
    for seed, curve in _first_curves(group):
        around = points_around(curve, steps) or ()
        losses = [point.loss for point in around if point.loss is not None]
        if losses and len(losses) == len(around):
            least[seed] = min(losses)
    return least


def _first_curves(group: LearningGroup) -> Iterator[tuple[str, Sequence[Reached]]]:
    for seed in group.seeds:
        if seed.curves:
            yield seed.seed, next(iter(seed.curves.values()))


def _rate(group: LearningGroup, losses: Losses) -> RateLearning:
    ends = bootstrap_ends([[loss] for loss in losses.values()], fmean) if losses else None
    low, high = ends or (None, None)
    return RateLearning(
        learning_rate=rate_of(group),
        loss=fmean(losses.values()) if losses else None,
        low=low,
        high=high,
        seeds=len(group.seeds),
        diverged=sum(seed.diverged for seed in group.seeds),
    )

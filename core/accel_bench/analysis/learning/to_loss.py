"""What it took to reach a loss, over rounds and seeds, and whether a stack was there sooner."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from accel_bench.analysis.learning.curves import Amounts, amounts_to
from accel_bench.analysis.learning.groups import LearningGroup
from accel_bench.analysis.learning.schema import LossRace, ToLoss
from accel_bench.analysis.statistics.bootstrap import bootstrap_ends
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.statistics.verdict import MINIMUM_ROUNDS

NEVER = Amounts(math.inf, math.inf, math.inf)
"""Stands for what a run took that did not reach the loss: more than any that did."""

Found = Mapping[str, Mapping[object, Amounts]]
"""What each run took, by seed and by session and round."""


def amounts_of(group: LearningGroup, loss: float) -> dict[str, dict[object, Amounts]]:
    """Return what each run of a group took to reach a loss."""
    return {
        one.seed: {key: amounts_to(curve, loss) or NEVER for key, curve in one.curves.items()}
        for one in group.seeds
        if one.curves
    }


def to_loss(
    found: Found, loss: float, usd_per_hour: float | None, baseline: Found | None
) -> ToLoss:
    """Return medians and intervals; `baseline` is what its runs took, null for the baseline."""
    every = [one for by_round in found.values() for one in by_round.values()]
    reached = sum(one is not NEVER for one in every)
    seconds = _interval(found, "seconds")
    ratio, verdict = _race(found, baseline)
    if not reached:
        verdict = "not reached"
    return ToLoss(
        loss=loss,
        reached=reached,
        runs=len(every),
        steps=_interval(found, "steps"),
        tokens=_interval(found, "tokens"),
        seconds=seconds,
        usd=_scaled(seconds, usd_per_hour),
        ratio=ratio,
        verdict=verdict,
    )


def _interval(found: Found, name: str) -> Interval | None:
    clusters = [
        [getattr(one, name) for one in by_round.values()] for by_round in found.values() if by_round
    ]
    return finite_interval(clusters)


def finite_interval(clusters: Sequence[Sequence[float]]) -> Interval | None:
    """Return the median with its bootstrap interval; None for one that is not finite."""
    values = [value for cluster in clusters for value in cluster]
    middle = median(values) if values else math.inf
    if not math.isfinite(middle):
        return None
    low, high = bootstrap_ends(clusters, median) or (None, None)
    return Interval(median=middle, low=low, high=_finite(high))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _scaled(seconds: Interval | None, usd_per_hour: float | None) -> Interval | None:
    if seconds is None or usd_per_hour is None:
        return None
    return seconds.mapped(lambda value: value * usd_per_hour / 3600)


def _race(found: Found, baseline: Found | None) -> tuple[Interval | None, LossRace]:
    """Return how many times as soon, over pairs of one seed and round, and the verdict.

    Fewer than five seeds, or rounds of one seed, give no verdict.
    """
    if baseline is None:
        return None, "baseline"
    clusters = [_ratios(by_round, baseline.get(seed, {})) for seed, by_round in found.items()]
    clusters = [cluster for cluster in clusters if cluster]
    units = len(clusters) if len(clusters) > 1 else sum(map(len, clusters))
    ends = bootstrap_ends(clusters, median) if units >= MINIMUM_ROUNDS else None
    if ends is None or ends[0] <= 1 <= ends[1]:
        return finite_interval(clusters), "could not tell"
    return finite_interval(clusters), "sooner" if ends[0] > 1 else "later"


def _ratios(own: Mapping[object, Amounts], baseline: Mapping[object, Amounts]) -> list[float]:
    """Return the ratios of both seconds; a pair of which neither reached the loss has none."""
    found = []
    for key, one in own.items():
        before, after = baseline.get(key, NEVER).seconds, one.seconds
        if key not in baseline or (math.isinf(before) and math.isinf(after)):
            continue
        found.append(before / after if after else 1.0 if not before else math.inf)
    return found

"""Steps, tokens and seconds used to reach a loss, and the comparison with the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.statistics.verdict import Comparison, RoundKey, compare_logs
from accel_bench_report.learning.bootstrap import bootstrap_ends
from accel_bench_report.learning.curve_points import Amounts, amounts_to
from accel_bench_report.learning.groups import LearningGroup
from accel_bench_report.learning.schema import ToLoss

NEVER = Amounts(math.inf, math.inf, math.inf)
"""Amounts of a run that did not reach the loss: infinite."""

Found = Mapping[str, Mapping[RoundKey, Amounts]]
"""Amounts used by each run to reach a loss, by seed and by (session, round)."""


def amounts_of(group: LearningGroup, loss: float) -> dict[str, dict[RoundKey, Amounts]]:
    """Return the steps, tokens and seconds of each run until it reached a loss, by seed and round.

    All three are infinite (`NEVER`) for a run that did not reach the loss. Seeds without a curve
    are left out.
    """
    return {
        seed.seed: {key: amounts_to(curve, loss) or NEVER for key, curve in seed.curves.items()}
        for seed in group.seeds
        if seed.curves
    }


def to_loss(
    found: Found, loss: float, usd_per_hour: float | None, raced: Comparison | None
) -> ToLoss:
    """Return the median steps, tokens, seconds and dollars used to reach a loss, with intervals.

    `found` has the steps, tokens and seconds of each run. `raced` is the comparison with the
    baseline, and None for the baseline. Without `usd_per_hour` the dollars are None.
    """
    every = [amounts for by_round in found.values() for amounts in by_round.values()]
    reached = sum(amounts is not NEVER for amounts in every)
    seconds = _interval(found, "seconds")
    return ToLoss(
        loss=loss,
        reached=reached,
        runs=len(every),
        steps=_interval(found, "steps"),
        tokens=_interval(found, "tokens"),
        seconds=seconds,
        usd=_scaled(seconds, usd_per_hour),
        is_baseline=raced is None,
        **dict(raced or Comparison()),
    )


def _interval(found: Found, name: str) -> Interval | None:
    clusters = [
        [getattr(amounts, name) for amounts in by_round.values()]
        for by_round in found.values()
        if by_round
    ]
    return finite_interval(clusters)


def finite_interval(clusters: Sequence[Sequence[float]]) -> Interval | None:
    """Return the median of values with its bootstrap interval; None if the median is not finite.

    `clusters` are the values of each seed.
    """
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


def race(baseline: Found, stacks: Mapping[str, Found]) -> dict[str, Comparison]:
    """Return each stack's comparison with the baseline by time to a loss, by stack name.

    `baseline` and `stacks` hold the steps, tokens and seconds of the runs. Verdicts follow the rule
    for speeds; the pairs are of seeds or, with one seed, of rounds. There is no verdict with fewer
    than five pairs, or if only one run of a pair reached the loss.
    """
    pairs = {name: _ratios(own, baseline) for name, own in stacks.items()}
    logs = {name: _logs(clusters) for name, clusters in pairs.items()}
    looks = {name: _looks(baseline, own) for name, own in stacks.items()}
    judged = compare_logs({name: values for name, values in logs.items() if values}, looks)
    return {
        name: judged.get(name) or Comparison(ratio=finite_interval(pairs[name])) for name in stacks
    }


def _ratios(own: Found, baseline: Found) -> list[list[float]]:
    """Return the baseline's seconds divided by the stack's for each paired run, grouped by seed.

    Pairs of which neither run reached the loss are left out.
    """
    clusters = [
        [
            _ratio(base[key].seconds, amounts.seconds)
            for key, amounts in by_round.items()
            if key in base and not (base[key] is NEVER and amounts is NEVER)
        ]
        for seed, by_round in own.items()
        for base in [baseline.get(seed, {})]
    ]
    return [cluster for cluster in clusters if cluster]


def _ratio(before: float, after: float) -> float:
    if after:
        return before / after
    return math.inf if before else 1.0


def _logs(clusters: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean log-ratio of each seed, or the log-ratios of a single seed's rounds.

    The list is empty if any ratio is 0 or infinite.
    """
    if not all(0 < ratio < math.inf for cluster in clusters for ratio in cluster):
        return []
    logs = [[math.log(ratio) for ratio in cluster] for cluster in clusters]
    return (
        [fmean(seed) for seed in logs] if len(logs) > 1 else [log for each in logs for log in each]
    )


def _looks(baseline: Found, own: Found) -> int:
    """Return the number of sessions that measured the pairs; each is an interim analysis (look)."""
    keys = {
        key for seed, by_round in own.items() for key in set(by_round) & set(baseline.get(seed, {}))
    }
    return max(1, len({session for session, _ in keys}))

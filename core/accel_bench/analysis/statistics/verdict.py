"""Is a stack faster than the baseline? Paired log-ratios, a t bound, and an honest verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Literal, NamedTuple, TypeAlias

from accel_bench.analysis.statistics.estimators import (
    Interval,
    holm,
    log_interval,
    one_sided_p,
    paired_log_ratio,
    standard_error,
    t_quantile,
)
from accel_bench.documents.base import Frozen

RoundKey: TypeAlias = tuple[str, int]
"""Session and round: runs that share both are a pair."""

Verdict: TypeAlias = Literal["faster", "slower", "same", "inconclusive", "not tested"]
"""What may be said about a stack's speed."""

MINIMUM_ROUNDS = 5
"""Fewer rounds get no verdict."""

MAXIMUM_ROUNDS = 200
"""More rounds than this are no advice."""

ONE_SIDED_ALPHA = 0.005
"""A 99.5 % bound on each side: identical code is called different in at most 1 % of comparisons."""

PRACTICAL_FLOOR = 0.01
"""Relative effects below this are not worth a verdict, however sure they are."""

SAME_WITHIN = 0.02
"""Relative distance within which the whole 95 % interval must lie to be called the same."""


class Comparison(Frozen):
    """One stack held against the baseline."""

    rounds: int
    """Rounds in which both completed."""

    ratio: Interval | None
    """Speed-up: the baseline's seconds per token over the stack's; null without a round."""

    verdict: Verdict
    """What may be said."""

    reason: str = ""
    """Why there is no verdict, where there is none."""

    minimum_detectable_effect: float | None = None
    """Smallest relative change of speed that these rounds could have shown; 0.03 is 3 %."""

    rounds_needed: int | None = None
    """Rounds in all that would settle an open verdict if spread and mean stay; null if hopeless."""


def compare(
    baseline: Mapping[RoundKey, float],
    stacks: Mapping[str, Mapping[RoundKey, float]],
    noise_floor: float | None = None,
    floor: float = PRACTICAL_FLOOR,
) -> dict[str, Comparison]:
    """Compare seconds per real token, one number per process, of stacks with the baseline's.

    Only runs with the same key are compared. `noise_floor` is the relative difference that
    identical code showed on this machine; effects up to `floor` are not worth a verdict, however
    sure they are. Holm's method adjusts for all stacks given.
    """
    logs = {name: paired_logs(baseline, runs) for name, runs in stacks.items()}
    tested = [name for name in stacks if len(logs[name]) >= MINIMUM_ROUNDS]
    p_values = holm([one_sided_p(logs[name]) for name in tested])
    chances = dict(zip(tested, p_values, strict=True))
    margin = math.log1p(max(SAME_WITHIN, 2 * (noise_floor or 0.0)))
    return {
        name: _judge(logs[name], chances[name], _Rule(len(tested), margin, floor))
        if name in chances
        else _too_few(logs[name])
        for name in stacks
    }


def paired_logs(baseline: Mapping[RoundKey, float], runs: Mapping[RoundKey, float]) -> list[float]:
    """log(baseline / stack) of every pair, in order of the keys."""
    keys = sorted(set(baseline) & set(runs))
    return paired_log_ratio([baseline[key] for key in keys], [runs[key] for key in keys])


def _too_few(logs: Sequence[float]) -> Comparison:
    """Give the ratio without a verdict, and say how many rounds are missing."""
    few = f"{len(logs)} of the {MINIMUM_ROUNDS} rounds that a verdict needs"
    return Comparison(
        rounds=len(logs),
        ratio=log_interval(logs),
        verdict="not tested",
        reason=f"{few}; {MINIMUM_ROUNDS - len(logs)} missing",
        rounds_needed=MINIMUM_ROUNDS,
    )


class _Rule(NamedTuple):
    """What one comparison is judged by."""

    compared: int
    """Stacks that are looked at together."""

    margin: float
    """What `same` allows, as a log-ratio."""

    floor: float
    """Relative effects up to this are not worth a verdict."""


def _judge(logs: Sequence[float], chance: float, rule: _Rule) -> Comparison:
    """Apply the rule; `chance` is the adjusted p-value."""
    verdict = _verdict(logs, chance, rule)
    is_open = verdict == "inconclusive"
    return Comparison(
        rounds=len(logs),
        ratio=log_interval(logs),
        verdict=verdict,
        minimum_detectable_effect=_visible_effect(logs, rule),
        rounds_needed=_rounds_needed(logs, rule) if is_open else None,
    )


def _verdict(logs: Sequence[float], chance: float, rule: _Rule) -> Verdict:
    """Different if it is sure and large enough, the same if it surely lies near 1, else open."""
    mean = fmean(logs)
    if chance < ONE_SIDED_ALPHA and abs(mean) > math.log1p(rule.floor):
        return "faster" if mean > 0 else "slower"
    half = t_quantile(len(logs) - 1, 0.975) * standard_error(logs)
    return "same" if abs(mean) + half <= rule.margin else "inconclusive"


def _visible_effect(logs: Sequence[float], rule: _Rule) -> float:
    """Smallest relative effect beyond both the bound, at Holm's strictest level, and the floor."""
    share = 1 - ONE_SIDED_ALPHA / rule.compared
    bound = t_quantile(len(logs) - 1, share) * standard_error(logs)
    return max(math.expm1(bound), rule.floor)


def _rounds_needed(logs: Sequence[float], rule: _Rule) -> int | None:
    """The smallest count at which the same mean and spread would give a verdict."""
    mean, spread = abs(fmean(logs)), stdev(logs)
    for count in range(len(logs) + 1, MAXIMUM_ROUNDS + 1):
        error = spread / math.sqrt(count)
        bound = t_quantile(count - 1, 1 - ONE_SIDED_ALPHA / rule.compared) * error
        if mean > max(bound, math.log1p(rule.floor)):
            return count
        if mean + t_quantile(count - 1, 0.975) * error <= rule.margin:
            return count
    return None

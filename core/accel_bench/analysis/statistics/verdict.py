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
    t_bound,
    t_quantile,
)
from accel_bench.documents.base import Frozen

RoundKey: TypeAlias = tuple[str, int]
"""Session and round: runs that share both are a pair."""

Verdict: TypeAlias = Literal[
    "faster", "different training", "slower", "same", "inconclusive", "not tested"
]
"""Verdicts on a stack's speed; `different training` is that of one that would be `faster`."""

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
    """The speed of a stack over that of its baseline, or of B over that of A."""

    rounds: int = 0
    """Rounds in which both completed."""

    ratio: Interval | None = None
    """Speed-up, with a 95 % interval over rounds; null without a round.

    Where `compare` has runs of different sessions alone, Welch's interval of unpaired runs.
    """

    verdict: Verdict = "not tested"
    """Whether it is faster, as far as the rounds show."""

    verdict_reason: str = ""
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
    rule = _Rule(len(tested), margin, floor)
    return {
        name: _judge(own, chances[name], rule) if name in chances else _too_few(own)
        for name, own in logs.items()
    }


def paired_logs(baseline: Mapping[RoundKey, float], runs: Mapping[RoundKey, float]) -> list[float]:
    """Return log(baseline / stack) of every shared round: positive where the stack took less."""
    return [math.log(baseline[key] / runs[key]) for key in sorted(set(baseline) & set(runs))]


def _too_few(logs: Sequence[float]) -> Comparison:
    few = f"{len(logs)} of the {MINIMUM_ROUNDS} rounds that a verdict needs"
    return Comparison(
        rounds=len(logs),
        ratio=log_interval(logs),
        verdict_reason=f"{few}; {MINIMUM_ROUNDS - len(logs)} missing",
        rounds_needed=MINIMUM_ROUNDS,
    )


class _Rule(NamedTuple):
    """What stacks that are compared together are judged by."""

    compared: int
    margin: float
    """What `same` allows, as a log-ratio."""

    floor: float

    @property
    def probability(self) -> float:
        """That of the bound at Holm's strictest level."""
        return 1 - ONE_SIDED_ALPHA / self.compared


def _judge(logs: Sequence[float], chance: float, rule: _Rule) -> Comparison:
    """Apply the rule; `chance` is the adjusted p-value."""
    verdict = _verdict(logs, chance, rule)
    return Comparison(
        rounds=len(logs),
        ratio=log_interval(logs),
        verdict=verdict,
        minimum_detectable_effect=max(math.expm1(t_bound(logs, rule.probability)), rule.floor),
        rounds_needed=_rounds_needed(logs, rule) if verdict == "inconclusive" else None,
    )


def _verdict(logs: Sequence[float], chance: float, rule: _Rule) -> Verdict:
    """Return whether it is surely and clearly different, surely the same, or open."""
    mean = fmean(logs)
    if chance < ONE_SIDED_ALPHA and abs(mean) > math.log1p(rule.floor):
        return "faster" if mean > 0 else "slower"
    return "same" if abs(mean) + t_bound(logs, 0.975) <= rule.margin else "inconclusive"


def _rounds_needed(logs: Sequence[float], rule: _Rule) -> int | None:
    """Return the smallest count at which the same mean and spread would give a verdict."""
    mean, spread = abs(fmean(logs)), stdev(logs)
    for count in range(len(logs) + 1, MAXIMUM_ROUNDS + 1):
        error = spread / math.sqrt(count)
        different = t_quantile(count - 1, rule.probability) * error
        same = t_quantile(count - 1, 0.975) * error
        if mean > max(different, math.log1p(rule.floor)) or mean + same <= rule.margin:
            return count
    return None

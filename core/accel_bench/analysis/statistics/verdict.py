"""Verdicts on paired rounds: a t test of log-ratios with bounded error rates over all looks.

Each session that adds rounds is another look at a comparison, and each look could raise a false
alarm. Look number k spends the fraction 1 / (k (k + 1)) of each error rate; these fractions sum to
less than 1 over any number of looks.
"""

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
    unpaired_ratio,
)
from accel_bench.documents.base import Frozen

RoundKey: TypeAlias = tuple[str, int]
"""Session and round; runs of two stacks with the same key are a pair."""

Direction: TypeAlias = Literal["better", "same", "worse", "inconclusive", "not tested"]
"""Verdicts on a figure relative to another, such as a speed."""


class QuantityWords(NamedTuple):
    """Words for the ratio and the verdicts of a compared quantity."""

    times: str = "times as fast"
    better: str = "faster"
    worse: str = "slower"
    same: str = "equally fast"


OF_SPEED = QuantityWords()
OF_ANY = QuantityWords("times as good", "better", "worse", "equally good")
"""Words for speeds and latencies (OF_SPEED), and for all other quantities."""

Training: TypeAlias = Literal[
    "not tested", "bitwise equal", "equivalent", "inconclusive", "different by design", "different"
]
"""Verdicts on training or output relative to the baseline's, from harmless to bad.

`bitwise equal`: losses that are equal in every step and round, equal changes of all weights, or
equal tokens. `inconclusive`: steps that hardly moved the loss, or a distance that a rule explains.
"""

ALIKE: frozenset[Training] = frozenset({"bitwise equal", "equivalent"})
"""Verdicts that mean the same training."""

Finding: TypeAlias = Literal["holds", "does not hold", "inconclusive", "not tested"]
"""Verdicts on a statement, such as a claim, a reproduction or a limit."""

MINIMUM_ROUNDS = 5
"""Minimum number of rounds for a verdict."""

MOST_ROUNDS = 12
"""Largest number of rounds with `measure.rounds: auto`."""

MAXIMUM_ROUNDS = 200
"""Largest number of rounds that is recommended."""

ONE_SIDED_ALPHA = 0.005
"""Probability that identical code is called faster, and likewise slower, over all looks."""

SAME_ALPHA = 0.05
"""Probability that a difference at the margin is called the same, over all looks."""

PRACTICAL_FLOOR = 0.01
"""Relative effect below which a difference is never called better or worse."""

SAME_WITHIN = 0.02
"""Relative margin within which a ratio must surely lie to be called the same."""


class Comparison(Frozen):
    """Comparison of a stack's speed or other quantity with the baseline's, or of B's with A's."""

    rounds: int = 0
    """Number of rounds in which both completed."""

    looks: int = 0
    """Number of sessions with these rounds; each is a look of the sequential test."""

    ratio: Interval | None = None
    """Speed-up, with its interval over rounds; null without a common round.

    The confidence is the verdict's: the interval excludes 1 exactly if the test finds a difference.
    Estimates without a verdict have 95 % intervals, by Welch's test for unpaired runs.
    """

    verdict: Direction = "not tested"
    """Verdict on the speed or other quantity."""

    training: Training = "not tested"
    """Verdict on the training or output; only if it is not `different`, a better stack wins."""

    verdict_reason: str = ""
    """Reason for no verdict, or why a better stack's training is not the same."""

    minimum_detectable_effect: float | None = None
    """Smallest relative change that these rounds would detect; 0.03 is 3 %."""

    rounds_needed: int | None = None
    """Total number of rounds for a verdict, if mean and spread stay; null if too many."""

    def without_verdict(self, reason: str, verdict: Direction = "not tested") -> Comparison:
        """Return a copy with a verdict such as `not tested`, and the reason."""
        changes = {"verdict": verdict, "verdict_reason": reason, "rounds_needed": None}
        return self.model_copy(update=changes)

    @property
    def wins(self) -> bool:
        """True for a verdict `better` without a different training."""
        return self.verdict == "better" and self.training != "different"

    @property
    def words(self) -> QuantityWords:
        """Words of the compared quantity, if the row has one; else the words of a speed."""
        quantity = getattr(self, "quantity", None)
        words: QuantityWords = quantity.words if quantity else OF_SPEED
        return words

    @property
    def verdict_word(self) -> str:
        """Verdict in words for people, such as `faster` or `different training`."""
        if self.verdict == "better" and not self.wins:
            return "different training"
        named = {"better": self.words.better, "worse": self.words.worse}
        return named.get(self.verdict, self.verdict)


class Policy(NamedTuple):
    """Method and parameters of a comparison."""

    kind: Literal["paired", "estimate", "unpaired"] = "paired"
    """Method: paired rounds with a verdict, or an estimate of paired or unpaired runs with a 95 %
    interval and no verdict."""

    floor: float = PRACTICAL_FLOOR
    """Relative effect below which a difference is never called better or worse."""

    noise_floor: float | None = None
    """Relative difference that identical code showed on this machine; None if unknown."""

    points: int = 1
    """Number of sweep points, or rivals, that share the error rate (Bonferroni's inequality)."""

    looks: int | None = None
    """Number of the look, from 1; None to count sessions."""


PAIRED, ESTIMATE, UNPAIRED = Policy(), Policy("estimate"), Policy("unpaired")
"""Policies: a verdict on paired rounds, an estimate from pairs, an estimate from any runs."""


def compare(
    a: Mapping[RoundKey, float], b: Mapping[RoundKey, float], policy: Policy = PAIRED
) -> Comparison:
    """Return the comparison of B's costs with A's; `policy` chooses paired or unpaired rounds."""
    if policy.kind == "unpaired":
        return Comparison(ratio=unpaired_ratio(list(a.values()), list(b.values()))[0])
    return compare_stacks(a, {"b": b}, policy)["b"]


def compare_stacks(
    baseline: Mapping[RoundKey, float],
    stacks: Mapping[str, Mapping[RoundKey, float]],
    policy: Policy = PAIRED,
) -> dict[str, Comparison]:
    """Return the comparison of each stack's costs, such as seconds per token, with the baseline's.

    Only common rounds are compared. Holm's method adjusts p-values for the number of stacks, and
    each look spends its fraction of the error rate, which thus holds for all looks together.
    """
    logs = {name: paired_logs(baseline, runs) for name, runs in stacks.items()}
    looks = {name: policy.looks or count_looks(baseline, runs) for name, runs in stacks.items()}
    return compare_logs(logs, looks, policy)


def compare_logs(
    logs: Mapping[str, Sequence[float]], looks: Mapping[str, int], policy: Policy = PAIRED
) -> dict[str, Comparison]:
    """Return each stack's comparison, from its log-ratios (positive for a lower cost) and its
    number of looks."""
    if policy.kind == "estimate":
        return {
            name: Comparison(rounds=len(own), looks=looks[name], ratio=log_interval(own))
            for name, own in logs.items()
        }
    tested = [name for name in logs if len(logs[name]) >= MINIMUM_ROUNDS]
    spent = [
        policy.points * one_sided_p(logs[name]) / fraction_of_look(looks[name]) for name in tested
    ]
    chances = dict(zip(tested, holm(spent), strict=True))
    sharing = dict(zip(tested, _sharing(spent), strict=True))
    return {
        name: _judge(
            own,
            chances.get(name),
            sharing.get(name, 1) * policy.points,
            _Rule(policy, len(tested) * policy.points, looks[name]),
        )
        for name, own in logs.items()
    }


def count_looks(baseline: Mapping[RoundKey, object], runs: Mapping[RoundKey, object]) -> int:
    """Return the number of sessions with common rounds, which is the number of looks."""
    return len({session for session, _ in set(baseline) & set(runs)})


def fraction_of_look(look: int) -> float:
    """Return the fraction of an error rate that the look with this number (from 1) spends."""
    return 1 / (look * (look + 1))


def _sharing(p_values: Sequence[float]) -> list[int]:
    """Return for each p-value the number of stacks that share the error rate, by Holm's method."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    sharing, left = [0] * len(p_values), len(p_values)
    for index in order:
        sharing[index] = left
        left -= left * p_values[index] < ONE_SIDED_ALPHA
    return sharing


def paired_logs(baseline: Mapping[RoundKey, float], runs: Mapping[RoundKey, float]) -> list[float]:
    """Return log(baseline / stack) of every common round, positive if the stack costs less."""
    return [math.log(baseline[key] / runs[key]) for key in sorted(set(baseline) & set(runs))]


class _Rule(NamedTuple):
    """Parameters of the test of stacks that are compared together."""

    policy: Policy
    compared: int

    look: int
    """Number of the look, from 1."""

    @property
    def margin(self) -> float:
        """Largest log-ratio that is called `same`."""
        return math.log1p(max(SAME_WITHIN, 2 * (self.policy.noise_floor or 0.0)))

    @property
    def probability(self) -> float:
        """Confidence of the t bound that gives the minimum detectable effect, by Holm's method."""
        return 1 - ONE_SIDED_ALPHA * fraction_of_look(self.look) / self.compared

    @property
    def same(self) -> float:
        """Confidence of the bound that must lie within the margin for a verdict `same`."""
        return 1 - SAME_ALPHA * fraction_of_look(self.look)


def _judge(logs: Sequence[float], chance: float | None, sharing: int, rule: _Rule) -> Comparison:
    """Return a stack's comparison from its log-ratios. `chance` is the p-value adjusted for looks
    and stacks, None for too few rounds. `sharing` stacks share the test's error rate. The interval
    excludes 1 exactly if the test finds a difference."""
    error = 2 * ONE_SIDED_ALPHA * fraction_of_look(max(rule.look, 1)) / sharing
    ratio = log_interval(logs, 1 - error)
    result = Comparison(rounds=len(logs), looks=rule.look, ratio=ratio)
    if chance is None:
        few = f"{len(logs)} of the {MINIMUM_ROUNDS} rounds that a verdict needs"
        reason = f"{few}; {MINIMUM_ROUNDS - len(logs)} missing"
        return result.model_copy(update={"verdict_reason": reason, "rounds_needed": MINIMUM_ROUNDS})
    verdict, visible = _verdict(logs, chance, rule), t_bound(logs, rule.probability)
    open_ = verdict == "inconclusive"
    needed = _rounds_needed(logs, rule._replace(look=rule.look + 1)) if open_ else None
    return result.model_copy(
        update={
            "verdict": verdict,
            "minimum_detectable_effect": max(math.expm1(visible), rule.policy.floor),
            "rounds_needed": needed,
        }
    )


def _verdict(logs: Sequence[float], chance: float, rule: _Rule) -> Direction:
    """Return the verdict by the adjusted p-value `chance`; `inconclusive` if nothing is sure."""
    mean = fmean(logs)
    if chance < ONE_SIDED_ALPHA and abs(mean) > math.log1p(rule.policy.floor):
        return "better" if mean > 0 else "worse"
    return "same" if abs(mean) + t_bound(logs, rule.same) <= rule.margin else "inconclusive"


def _rounds_needed(logs: Sequence[float], rule: _Rule) -> int | None:
    """Return the number of rounds for a verdict at the same mean and spread; None if too many."""
    mean, spread = abs(fmean(logs)), stdev(logs)
    for count in range(len(logs) + 1, MAXIMUM_ROUNDS + 1):
        error = spread / math.sqrt(count)
        different = t_quantile(count - 1, rule.probability) * error
        same = t_quantile(count - 1, rule.same) * error
        if mean > max(different, math.log1p(rule.policy.floor)) or mean + same <= rule.margin:
            return count
    return None

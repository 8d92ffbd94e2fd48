"""Is a stack faster than the baseline? Paired log-ratios, a t bound, and an honest verdict.

Rounds that a later session adds are another look at the same comparison, and each look could raise
a false alarm. Look number k may spend only 1 / (k (k + 1)) of each error: these fractions sum to
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
"""Session and round: runs that share both are a pair."""

Direction: TypeAlias = Literal["better", "same", "worse", "inconclusive", "not tested"]
"""Verdicts on a figure beside another one, such as a speed."""


class QuantityWords(NamedTuple):
    """Words for the ratio of a compared quantity, and for its verdicts."""

    times: str = "times as fast"
    better: str = "faster"
    worse: str = "slower"
    same: str = "equally fast"


OF_SPEED = QuantityWords()
OF_ANY = QuantityWords("times as good", "better", "worse", "equally good")
"""Words for a speed or a latency, and for any other quantity."""

Training: TypeAlias = Literal[
    "not tested", "bitwise equal", "equivalent", "inconclusive", "different by design", "different"
]
"""Verdicts on what was trained or generated beside the baseline's, from harmless to bad.

`bitwise equal` is said of losses that are equal in every step and round, of changes of all weights
that are, and of outputs that agree token for token; `inconclusive` of steps that hardly moved the
loss, and of a distance that a rule explains.
"""

ALIKE: frozenset[Training] = frozenset({"bitwise equal", "equivalent"})
"""Verdicts on the same training."""

Finding: TypeAlias = Literal["holds", "does not hold", "inconclusive", "not tested"]
"""Verdicts on a statement: a claim, a reproduction, that a model fits, that a limit is kept."""

MINIMUM_ROUNDS = 5
"""Fewer rounds get no verdict."""

MOST_ROUNDS = 12
"""Rounds in all of a stack whose verdict stays open, where their number is `auto`."""

MAXIMUM_ROUNDS = 200
"""More rounds than this are no advice."""

ONE_SIDED_ALPHA = 0.005
"""How often identical code may be called faster, and slower: 1 % in all, over all looks."""

SAME_ALPHA = 0.05
"""How often a difference at the margin may be called the same, over all looks."""

PRACTICAL_FLOOR = 0.01
"""Relative effects below this are not worth a verdict, however sure they are."""

SAME_WITHIN = 0.02
"""Relative distance within which the ratio surely lies to be called the same."""


class Comparison(Frozen):
    """The speed of a stack, or another figure, beside that of its baseline, or of B beside A."""

    rounds: int = 0
    """Rounds in which both completed."""

    looks: int = 0
    """Sessions in which these rounds were measured; each is a look at them."""

    ratio: Interval | None = None
    """Speed-up, with its interval over rounds; null without a round.

    The confidence is that of the verdict: the interval leaves out 1 exactly if the test sees a
    difference. Estimates, which get no verdict, have one of 95 %, that of unpaired runs is Welch's.
    """

    verdict: Direction = "not tested"
    """Verdict on the speed, as far as the rounds show."""

    training: Training = "not tested"
    """Verdict on the training behind it, or on the output: better counts only where it does not
    differ."""

    verdict_reason: str = ""
    """Why there is no verdict, or why a better one is not for the same training."""

    minimum_detectable_effect: float | None = None
    """Smallest relative change of speed that these rounds could have shown; 0.03 is 3 %."""

    rounds_needed: int | None = None
    """Rounds in all that would settle an open verdict if spread and mean stay; null if hopeless.

    That is with the next look at them, which the session that adds the rounds is.
    """

    def without_verdict(self, reason: str, verdict: Direction = "not tested") -> Comparison:
        """Return it with a verdict that says nothing in the place of its own, and why."""
        changes = {"verdict": verdict, "verdict_reason": reason, "rounds_needed": None}
        return self.model_copy(update=changes)

    @property
    def wins(self) -> bool:
        """True if it is better, and nothing shows that its training differs."""
        return self.verdict == "better" and self.training != "different"

    @property
    def words(self) -> QuantityWords:
        """Words for its `quantity`, where the row of a document has one, else for a speed."""
        quantity = getattr(self, "quantity", None)
        words: QuantityWords = quantity.words if quantity else OF_SPEED
        return words

    @property
    def verdict_word(self) -> str:
        """The verdict as people read it, such as `faster` or `different training`."""
        if self.verdict == "better" and not self.wins:
            return "different training"
        named = {"better": self.words.better, "worse": self.words.worse}
        return named.get(self.verdict, self.verdict)


class Policy(NamedTuple):
    """How two sides are compared."""

    kind: Literal["paired", "estimate", "unpaired"] = "paired"
    """Kind of comparison: pairs with a verdict, or an estimate of pairs or of unpaired runs, which
    has a 95 % interval and no verdict."""

    floor: float = PRACTICAL_FLOOR
    """Relative effect up to which none is worth a verdict, however sure it is."""

    noise_floor: float | None = None
    """Relative difference that identical code showed on this machine; None if it is not known."""

    points: int = 1
    """Sweep points, or rivals, among which the error is divided (Bonferroni's inequality)."""

    looks: int | None = None
    """Number of the look, from 1; None where each session is one."""


PAIRED, ESTIMATE, UNPAIRED = Policy(), Policy("estimate"), Policy("unpaired")
"""Policies of pairs with a verdict, of pairs without one, and of unpaired runs without one."""


def compare(
    a: Mapping[RoundKey, float], b: Mapping[RoundKey, float], policy: Policy = PAIRED
) -> Comparison:
    """Compare costs of B with those of A; of pairs only runs with the same key."""
    if policy.kind == "unpaired":
        return Comparison(ratio=unpaired_ratio(list(a.values()), list(b.values()))[0])
    return compare_stacks(a, {"b": b}, policy)["b"]


def compare_stacks(
    baseline: Mapping[RoundKey, float],
    stacks: Mapping[str, Mapping[RoundKey, float]],
    policy: Policy = PAIRED,
) -> dict[str, Comparison]:
    """Compare costs of processes, such as seconds per real token, of stacks and their baseline.

    Only runs with the same key are compared. Holm's method adjusts for all stacks given, each with
    the part of the error that its last look may spend: what is better or worse stays so while
    others are looked at again.
    """
    logs = {name: paired_logs(baseline, runs) for name, runs in stacks.items()}
    looks = {name: policy.looks or count_looks(baseline, runs) for name, runs in stacks.items()}
    return compare_logs(logs, looks, policy)


def compare_logs(
    logs: Mapping[str, Sequence[float]], looks: Mapping[str, int], policy: Policy = PAIRED
) -> dict[str, Comparison]:
    """Compare stacks by their paired log-ratios, positive where one took less."""
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
    """Return in how many sessions the shared rounds were measured: each is a look at them."""
    return len({session for session, _ in set(baseline) & set(runs)})


def fraction_of_look(look: int) -> float:
    """Return which part of an error rate a look may spend."""
    return 1 / (look * (look + 1))


def _sharing(p_values: Sequence[float]) -> list[int]:
    """Return how many stacks share the error of each by Holm's method: one less for each that is
    rejected before it."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    sharing, left = [0] * len(p_values), len(p_values)
    for index in order:
        sharing[index] = left
        left -= left * p_values[index] < ONE_SIDED_ALPHA
    return sharing


def paired_logs(baseline: Mapping[RoundKey, float], runs: Mapping[RoundKey, float]) -> list[float]:
    """Return log(baseline / stack) of every shared round: positive where the stack took less."""
    return [math.log(baseline[key] / runs[key]) for key in sorted(set(baseline) & set(runs))]


class _Rule(NamedTuple):
    """What stacks that are compared together are judged by."""

    policy: Policy
    compared: int

    look: int
    """Number of the look, from 1."""

    @property
    def margin(self) -> float:
        """Largest log-ratio that `same` allows."""
        return math.log1p(max(SAME_WITHIN, 2 * (self.policy.noise_floor or 0.0)))

    @property
    def probability(self) -> float:
        """Probability of the bound at Holm's strictest level."""
        return 1 - ONE_SIDED_ALPHA * fraction_of_look(self.look) / self.compared

    @property
    def same(self) -> float:
        """Probability of the bound that must lie within the margin."""
        return 1 - SAME_ALPHA * fraction_of_look(self.look)


def _judge(logs: Sequence[float], chance: float | None, sharing: int, rule: _Rule) -> Comparison:
    """Apply the rule; `chance` is the p-value, adjusted for looks and stacks, None of too few
    rounds. The interval leaves out 1 exactly if the test, whose error `sharing` stacks share, sees
    a difference."""
    error = 2 * ONE_SIDED_ALPHA * fraction_of_look(max(rule.look, 1)) / sharing
    ratio = log_interval(logs, 1 - error)
    found = Comparison(rounds=len(logs), looks=rule.look, ratio=ratio)
    if chance is None:
        few = f"{len(logs)} of the {MINIMUM_ROUNDS} rounds that a verdict needs"
        reason = f"{few}; {MINIMUM_ROUNDS - len(logs)} missing"
        return found.model_copy(update={"verdict_reason": reason, "rounds_needed": MINIMUM_ROUNDS})
    verdict, visible = _verdict(logs, chance, rule), t_bound(logs, rule.probability)
    open_ = verdict == "inconclusive"
    needed = _rounds_needed(logs, rule._replace(look=rule.look + 1)) if open_ else None
    return found.model_copy(
        update={
            "verdict": verdict,
            "minimum_detectable_effect": max(math.expm1(visible), rule.policy.floor),
            "rounds_needed": needed,
        }
    )


def _verdict(logs: Sequence[float], chance: float, rule: _Rule) -> Direction:
    """Return whether it is surely and clearly different, surely the same, or open."""
    mean = fmean(logs)
    if chance < ONE_SIDED_ALPHA and abs(mean) > math.log1p(rule.policy.floor):
        return "better" if mean > 0 else "worse"
    return "same" if abs(mean) + t_bound(logs, rule.same) <= rule.margin else "inconclusive"


def _rounds_needed(logs: Sequence[float], rule: _Rule) -> int | None:
    """Return the smallest count at which the same mean and spread would give a verdict."""
    mean, spread = abs(fmean(logs)), stdev(logs)
    for count in range(len(logs) + 1, MAXIMUM_ROUNDS + 1):
        error = spread / math.sqrt(count)
        different = t_quantile(count - 1, rule.probability) * error
        same = t_quantile(count - 1, rule.same) * error
        if mean > max(different, math.log1p(rule.policy.floor)) or mean + same <= rule.margin:
            return count
    return None

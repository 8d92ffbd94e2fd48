"""Did a stack generate the same text? Its tokens against the baseline's, request by request."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from accel_bench.analysis.checks.allowance import Allowance, Limits, allowance
from accel_bench.analysis.statistics.verdict import Comparison, RoundKey
from accel_bench.analysis.wording import count, percent
from accel_bench.documents.base import Frozen
from accel_bench.result import Answers, Result
from accel_bench.scenario.models import Scenario

OutputWord: TypeAlias = Literal[
    "same", "equivalent", "different", "different by design", "not tested"
]
"""Verdicts on what was generated; `same` is token for token."""

EXACT = 0.0
"""Share of tokens that may differ where both decode greedily in float32."""

HALF_TOLERANCE = 0.05
"""The same where either computes in 16 bits, in which two tokens are often equally likely."""

MAXIMUM_TOLERANCE = 0.2
"""Largest share of other tokens that a declared tolerance makes equivalent."""

DRAWN = "sampling drew other tokens, and which of them differ by more than the draw is not known"
"""Why nothing is said of other tokens where they were drawn."""

BLOCK = 8
"""Tokens of the stretches of an answer that are judged on their own."""

CHANCE = 1e-4
"""How often a stretch in which as many tokens differ as is allowed may be held to be worse."""

OTHER_UNITS = "one of the two has token ids, the other one text alone"
"""Why tokens are not compared with letters."""

LETTERS = (
    "texts without token ids are compared letter by letter, and none may differ; a server that "
    "knows return_token_ids tells them (engine.extra)"
)
"""What is allowed where letters are compared."""

NOTHING = "no token was generated"
"""Why empty answers show nothing."""

AT_A_RATE = (
    "at inference.rate a slower server answers larger batches, so that tokens per busy second tell "
    "no speed: compare latencies at this rate"
)
"""Why there is no verdict on the speed at a rate."""

NO_ANSWERS = "one of the two has kept no answers"
"""Why nothing is compared."""


def _usual(baseline: Result, stack: Result) -> float:
    works = (baseline.experiment.scenario, stack.experiment.scenario)
    exact = all(work.compute_dtype == "float32" for work in works)
    return EXACT if exact else HALF_TOLERANCE


LIMITS = Limits(lambda run: run.output_tolerances, _usual, MAXIMUM_TOLERANCE, trusts_distance=True)
"""What is allowed for the share of other tokens."""


class OutputComparison(Frozen):
    """What a stack generated against what the baseline did, or B against A."""

    output_verdict: OutputWord = "not tested"
    """Whether it is the same text."""

    output_difference: float | None = None
    """Share of other tokens among those before which all tokens are equal, of the worst round: a
    model is not blamed for what follows from another token. 0.01 is 1 %.

    Where a stretch of eight positions is surely worse than all of them, what surely differs there.
    """

    output_tolerance: float | None = None
    """Share that is allowed; null where nothing was compared."""

    output_tolerance_by: tuple[str, ...] = ()
    """Plugins that declare it, of those that one side alone uses; empty where none does."""

    output_requests: int | None = None
    """Requests that were compared, of all rounds; null where nothing was."""

    output_reason: str = ""
    """Why the verdict is not `same`."""


class Block(NamedTuple):
    """A stretch of positions of all answers, as far as all tokens before are equal."""

    first: int
    """Its first position, from 1."""

    differing: int
    """Tokens that differ."""

    compared: int
    """Tokens before which all tokens of the request are equal."""

    @property
    def surely(self) -> float:
        """Share of its tokens that surely differ, but for a small chance.

        Source: Chernoff's bound on the tail of a binomial distribution, solved for the share.
        """
        found, low, high = self.differing / self.compared, 0.0, self.differing / self.compared
        for _ in range(50):
            middle = (low + high) / 2
            unlikely = self.compared * _divergence(found, middle) > -math.log(CHANCE)
            low, high = (middle, high) if unlikely else (low, middle)
        return low


class Agreement(NamedTuple):
    """How two runs agree in their answers to the same requests."""

    requests: int
    """Requests that both answered."""

    differing: int
    """Requests with another answer."""

    tokens: Mapping[int, tuple[int, int]]
    """By position from 0: tokens that differ, and tokens before which all others of the request are
    equal."""

    @property
    def compared(self) -> int:
        """Tokens before which all tokens of the request are equal."""
        return sum(compared for _, compared in self.tokens.values())

    @property
    def overall(self) -> float:
        """Share of them that differ."""
        differing = sum(differing for differing, _ in self.tokens.values())
        return differing / self.compared if self.compared else 0.0

    @property
    def difference(self) -> float:
        """That share, or what surely differs of the worst stretch of positions, if that is more."""
        worst = self.worst
        return max(self.overall, worst.surely if worst else 0.0)

    @property
    def worst(self) -> Block | None:
        """The stretch of which most surely differs."""
        return max(self._blocks(), key=lambda block: block.surely, default=None)

    def _blocks(self) -> Iterator[Block]:
        sums: dict[int, list[int]] = {}
        for position, figures in self.tokens.items():
            kept = sums.setdefault(position // BLOCK, [0, 0])
            kept[0], kept[1] = kept[0] + figures[0], kept[1] + figures[1]
        for number, (differing, compared) in sums.items():
            if differing:
                yield Block(number * BLOCK + 1, differing, compared)


def _divergence(found: float, share: float) -> float:
    """Return the Kullback-Leibler divergence of two shares, in nats."""
    if share <= 0:
        return math.inf
    rest = (1 - found) * math.log((1 - found) / (1 - share)) if found < 1 else 0.0
    return found * math.log(found / share) + rest


def compare_outputs(
    baseline: Mapping[RoundKey, Result], stack: Mapping[RoundKey, Result]
) -> OutputComparison:
    """Compare the answers of completed runs with the same key; the worst round counts."""
    keys = [
        key
        for key in sorted(set(baseline) & set(stack))
        if baseline[key].status.completed and stack[key].status.completed
    ]
    if not keys:
        return OutputComparison(output_reason="no round in which both completed")
    pairs = [(baseline[key], stack[key]) for key in keys]
    asked = {key for before, after in pairs for key in _other_requests(before, after)}
    if asked:
        reason = f"other requests were answered: {', '.join(sorted(asked))} differs"
        return OutputComparison(output_reason=reason)
    found = [agreement(before, after) for before, after in pairs]
    known = [one for one in found if one is not None and one.requests]
    if len(known) < len(found):
        return OutputComparison(output_reason=NO_ANSWERS)
    units = [_units(*pair) for pair in pairs]
    if any(len(unit) > 1 for unit in units):
        return OutputComparison(output_reason=OTHER_UNITS)
    if not all(one.compared for one in known):
        return OutputComparison(output_reason=NOTHING)
    allowed = allowance(*pairs[0], LIMITS)
    letters = any("letters" in unit for unit in units)
    if letters:
        allowed = allowed._replace(tolerance=EXACT, usual=EXACT, plugins=())
    worst = max(known, key=lambda one: one.difference)
    sampled = pairs[0][0].experiment.scenario.inference.decoding == "sampling"
    requests = sum(one.requests for one in known)
    return _judged(worst, requests, allowed, sampled, letters)


def _judged(
    worst: Agreement, requests: int, allowed: Allowance, sampled: bool, letters: bool
) -> OutputComparison:
    """Return the verdict on the worst round."""
    found = OutputComparison(
        output_verdict="same",
        output_difference=worst.difference,
        output_tolerance=allowed.tolerance,
        output_tolerance_by=allowed.plugins,
        output_requests=requests,
    )
    if not worst.differing:
        return found
    if sampled:
        return found.model_copy(update={"output_verdict": "not tested", "output_reason": DRAWN})
    verdict: OutputWord = allowed.verdict(worst.difference)
    reason = (
        f"{worst.differing:,} of {count(worst.requests, 'request')} have another answer: "
        f"{_apart(worst)}, {allowed.words}"
    )
    if letters:
        reason += f"; {LETTERS}"
    if verdict == "different by design":
        reason += f"; {allowed.by_design}"
    return found.model_copy(update={"output_verdict": verdict, "output_reason": reason})


def _apart(worst: Agreement) -> str:
    """Return which share of the tokens differ, of all or of a stretch of positions."""
    block = worst.worst
    if block is None or worst.overall >= block.surely:
        return f"{percent(worst.overall)} of the tokens differ where all before are equal"
    share = block.differing / block.compared
    return (
        f"{percent(share)} of the tokens from {block.first} to {block.first + BLOCK - 1} differ "
        f"where all before are equal, {percent(block.surely)} at least"
    )


def of_offered_load(speed: Comparison, stack: Scenario) -> Comparison:
    """Return the speed, without a verdict where requests arrived at a rate."""
    if not stack.generates or stack.inference.rate is None:
        return speed
    changes = {"verdict": "not tested", "verdict_reason": AT_A_RATE, "rounds_needed": None}
    return speed.model_copy(update=changes)


def agreement(baseline: Result, stack: Result) -> Agreement | None:
    """Return how all ranks of two runs agree; None where one has kept no answers."""
    if not baseline.ranks or len(baseline.ranks) != len(stack.ranks):
        return None
    requests, differing = 0, 0
    tokens: dict[int, tuple[int, int]] = {}
    for before, after in zip(baseline.ranks, stack.ranks, strict=True):
        if before.answers is None or after.answers is None:
            return None
        for places in _compared_requests(before.answers, after.answers):
            requests += 1
            differing += any(places.values())
            for place, other in places.items():
                others, compared = tokens.get(place, (0, 0))
                tokens[place] = (others + other, compared + 1)
    return Agreement(requests, differing, tokens)


def _units(*runs: Result) -> set[str]:
    """Return what the ids of all answers are."""
    return {rank.answers.unit for run in runs for rank in run.ranks if rank.answers is not None}


def _compared_requests(before: Answers, after: Answers) -> Iterator[dict[int, bool]]:
    """Yield of each request that both answered, by position, whether its token differs.

    Where one has a digest only, an answer counts as one token.
    """
    for number in range(min(before.requests, after.requests)):
        if number < min(len(before.tokens), len(after.tokens)):
            yield _compared(before.tokens[number], after.tokens[number])
        else:
            yield {0: before.digest(number) != after.digest(number)}


def _compared(one: Sequence[int], other: Sequence[int]) -> dict[int, bool]:
    """Return the positions up to the first that differs, and itself; of two answers of which one is
    cut off, all positions that it lacks differ."""
    found = {}
    for place, (first, second) in enumerate(zip(one, other, strict=False)):
        found[place] = first != second
        if found[place]:
            return found
    shorter, longer = sorted((len(one), len(other)))
    return found | dict.fromkeys(range(shorter, longer), True)


def _other_requests(before: Result, after: Result) -> Iterator[str]:
    """Yield settings by which two runs answer other requests."""
    works = (before.experiment.scenario, after.experiment.scenario)
    for key in ("prompt_tokens", "new_tokens", "decoding"):
        ours, theirs = (getattr(work.inference, key) for work in works)
        if ours != theirs:
            yield f"inference.{key}"

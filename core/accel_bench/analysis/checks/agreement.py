"""How do two runs agree in their answers to the same requests? Token by token, and by request."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from accel_bench.result import Answers, Result

BLOCK = 8
"""Tokens of the stretches of an answer that are judged on their own."""

COARSENESS = ("float32", "float16", "bfloat16")
"""Dtypes of answers, the one that rounds most last."""

CHANCE = 1e-4
"""How often a stretch in which as many tokens differ as is allowed may be held to be worse."""


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

    unexplained: int
    """Requests whose first other token is where rounding alone chooses no other one: it stands in
    the place of one that is clearly the likeliest. 0 where no run knows its near ties."""

    known: int
    """Requests for which near ties are known."""

    untold: int
    """Requests with another answer for which they are not."""

    tokens: Mapping[int, tuple[int, int]]
    """Counts by position in an answer, from 0: differing tokens, and compared ones, whose earlier
    tokens all agree."""

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
        """Share of other tokens, or what surely differs of the worst stretch if that is more."""
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


def agreement(baseline: Result, stack: Result) -> Agreement | None:
    """Return how all ranks of two runs agree; None where one has kept no answers."""
    if not baseline.ranks or len(baseline.ranks) != len(stack.ranks):
        return None
    requests, differing, unexplained, known, untold = 0, 0, 0, 0, 0
    tokens: dict[int, tuple[int, int]] = {}
    for before, after in zip(baseline.ranks, stack.ranks, strict=True):
        if before.answers is None or after.answers is None:
            return None
        near_ties = _near_ties(baseline, before.answers, stack, after.answers)
        for number, places in enumerate(_compared_requests(before.answers, after.answers)):
            requests += 1
            differing += any(places.values())
            unexplained += _is_unexplained(places, near_ties.get(number))
            known += number in near_ties
            untold += any(places.values()) and number not in near_ties
            for place, other in places.items():
                others, compared = tokens.get(place, (0, 0))
                tokens[place] = (others + other, compared + 1)
    return Agreement(requests, differing, unexplained, known, untold, tokens)


def _near_ties(
    baseline: Result, before: Answers, stack: Result, after: Answers
) -> dict[int, set[int]]:
    """Return the near ties of each request for which they are known, in the dtype of the run that
    rounds more: up to the first other token both runs have the same text. Only where both have kept
    token ids is that one known."""
    kept = min(len(before.tokens), len(after.tokens))
    sides = ((baseline, before), (stack, after))
    places = [_coarseness(run) for run, _ in sides]
    found: dict[int, set[int]] = {}
    for place, (_, answers) in zip(places, sides, strict=True):
        known = (answers.near_ties or ()) if place == max(places) else ()
        for number, near in enumerate(known[:kept]):
            found.setdefault(number, set()).update(near)
    return found


def _coarseness(run: Result) -> int:
    """Return the place of a run's dtype among those that round less; the last one if unknown."""
    dtype = run.experiment.scenario.compute_dtype
    return COARSENESS.index(dtype) if dtype in COARSENESS else len(COARSENESS)


def _is_unexplained(places: Mapping[int, bool], near_ties: set[int] | None) -> bool:
    """Return whether the first other token of a request is known to be no near tie."""
    first = next((place for place, other in places.items() if other), None)
    return near_ties is not None and first is not None and first not in near_ties


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

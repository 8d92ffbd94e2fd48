"""Agreement of the answers of two runs to the same requests, by token and by request.

A near tie is a position at which the two likeliest tokens are closer than rounding can resolve.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from accel_bench.result import Answers, Result

BLOCK = 8
"""Number of consecutive token positions that are judged together."""

COARSENESS = ("float32", "float16", "bfloat16")
"""Dtypes of generating models, from the finest rounding to the coarsest."""

CHANCE = 1e-4
"""Probability that a block within the tolerance is judged to exceed it."""


class Block(NamedTuple):
    """Block of consecutive token positions in all answers, with counts of tokens."""

    first: int
    """First token position, from 1."""

    differing: int
    """Number of differing tokens."""

    compared: int
    """Number of compared tokens: only tokens whose predecessors all agree."""

    @property
    def surely(self) -> float:
        """Lower bound of the share of differing tokens, with error probability CHANCE.

        Source: Chernoff's bound on the tail of a binomial distribution, solved for the share.
        """
        observed, low, high = self.differing / self.compared, 0.0, self.differing / self.compared
        for _ in range(50):
            middle = (low + high) / 2
            unlikely = self.compared * _divergence(observed, middle) > -math.log(CHANCE)
            low, high = (middle, high) if unlikely else (low, middle)
        return low


class Agreement(NamedTuple):
    """Counts of equal and differing answers of two runs to the same requests."""

    requests: int
    """Number of requests that both runs answered."""

    differing: int
    """Number of requests with different answers."""

    unexplained: int
    """Number of requests whose first differing token is no near tie, so that rounding does not
    explain it; 0 if near ties are unknown."""

    known: int
    """Number of requests with known near ties."""

    untold: int
    """Number of differing answers to requests whose near ties are unknown."""

    tokens: Mapping[int, tuple[int, int]]
    """Differing and compared tokens by position in an answer, from 0; tokens after the first
    differing one are not compared."""

    @property
    def compared(self) -> int:
        """Number of compared tokens: only tokens whose predecessors all agree."""
        return sum(compared for _, compared in self.tokens.values())

    @property
    def overall(self) -> float:
        """Share of the compared tokens that differ."""
        differing = sum(differing for differing, _ in self.tokens.values())
        return differing / self.compared if self.compared else 0.0

    @property
    def difference(self) -> float:
        """Share of differing tokens in all blocks, or the worst block's lower bound if larger."""
        worst = self.worst
        return max(self.overall, worst.surely if worst else 0.0)

    @property
    def worst(self) -> Block | None:
        """Block with the largest lower bound of its differing share; None if no token differs."""
        return max(self._blocks(), key=lambda block: block.surely, default=None)

    def _blocks(self) -> Iterator[Block]:
        sums: dict[int, list[int]] = {}
        for position, figures in self.tokens.items():
            kept = sums.setdefault(position // BLOCK, [0, 0])
            kept[0], kept[1] = kept[0] + figures[0], kept[1] + figures[1]
        for number, (differing, compared) in sums.items():
            if differing:
                yield Block(number * BLOCK + 1, differing, compared)


def _divergence(observed: float, share: float) -> float:
    """Return the Kullback-Leibler divergence of Bernoulli(`observed`) from Bernoulli(`share`)."""
    if share <= 0:
        return math.inf
    rest = (1 - observed) * math.log((1 - observed) / (1 - share)) if observed < 1 else 0.0
    return observed * math.log(observed / share) + rest


def agreement(baseline: Result, stack: Result) -> Agreement | None:
    """Count equal and different answers of two runs; None if a rank's answers are missing."""
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
    """Return the token positions of near ties by request number, from the run with the coarser
    dtype. Only requests with token ids in both runs (`before` and `after`) are included."""
    kept = min(len(before.tokens), len(after.tokens))
    sides = ((baseline, before), (stack, after))
    places = [_coarseness(run) for run, _ in sides]
    ties: dict[int, set[int]] = {}
    for place, (_, output) in zip(places, sides, strict=True):
        known = (output.near_ties or ()) if place == max(places) else ()
        for number, near in enumerate(known[:kept]):
            ties.setdefault(number, set()).update(near)
    return ties


def _coarseness(run: Result) -> int:
    dtype = run.experiment.scenario.compute_dtype
    return COARSENESS.index(dtype) if dtype in COARSENESS else len(COARSENESS)


def _is_unexplained(places: Mapping[int, bool], near_ties: set[int] | None) -> bool:
    first = next((place for place, other in places.items() if other), None)
    return near_ties is not None and first is not None and first not in near_ties


def _compared_requests(before: Answers, after: Answers) -> Iterator[dict[int, bool]]:
    """Yield a mapping for each request of both runs: from token position to whether the tokens
    differ. If a run stored only a digest, the whole answer counts as one token."""
    for number in range(min(before.requests, after.requests)):
        if number < min(len(before.tokens), len(after.tokens)):
            yield _compared(before.tokens[number], after.tokens[number])
        else:
            yield {0: before.digest(number) != after.digest(number)}


def _compared(one: Sequence[int], other: Sequence[int]) -> dict[int, bool]:
    """Return by position whether two answers' tokens differ, up to the first difference. Positions
    that a shorter answer lacks count as different."""
    differs = {}
    for place, (first, second) in enumerate(zip(one, other, strict=False)):
        differs[place] = first != second
        if differs[place]:
            return differs
    shorter, longer = sorted((len(one), len(other)))
    return differs | dict.fromkeys(range(shorter, longer), True)

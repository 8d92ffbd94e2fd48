"""Balanced order of the stacks within rounds: a seeded Williams design."""

from __future__ import annotations

import random
from collections.abc import Sequence


def williams_rounds(stacks: Sequence[str], rounds: int, seed: int) -> list[list[str]]:
    """Return the order of the stacks in each round, as lists of their names.

    Over a full design (n rounds for an even number n of stacks, 2 n for an odd number) every stack
    stands equally often at every position, and equally often right after every other stack. Two
    stacks alternate: AB, BA, AB ... The seed assigns the names to the design's letters and selects
    the first row.

    Source: Williams (1949), "Experimental designs balanced for the estimation of residual effects
    of treatments".
    """
    if not stacks:
        return [[] for _ in range(rounds)]
    generator = random.Random(seed)
    names = list(stacks)
    generator.shuffle(names)
    rows = _design(len(names))
    first = generator.randrange(len(rows))
    return [[names[letter] for letter in rows[(first + r) % len(rows)]] for r in range(rounds)]


def _design(size: int) -> list[list[int]]:
    """Return the design's rows of stack numbers: 0, n-1, 1, n-2, ... plus 0, 1, 2, ... modulo n.
    Odd sizes also need the reversed rows, each after its own row so that positions balance soon."""
    zigzag = [(place + 1) // 2 if place % 2 else -(place // 2) % size for place in range(size)]
    rows = [[(letter + shift) % size for letter in zigzag] for shift in range(size)]
    if size % 2 == 0 or size == 1:
        return rows
    return [row for forward in rows for row in (forward, forward[::-1])]

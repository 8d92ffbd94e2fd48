"""Distribute the samples of an optimizer step over micro-batches and ranks, as plain lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Shares: TypeAlias = list[list[list[int]]]
"""Places in the step, by rank and by micro-batch: shares[rank][micro_batch] is a list of places."""


def same_shares(samples: int, ranks: int, accumulation: int) -> Shares:
    """Share a step out as padded batches do: rank r takes every `ranks`-th sample from the r-th on.

    `samples` is the number of samples of the step, a multiple of ranks x accumulation.
    """
    size = samples // (ranks * accumulation)
    return [
        [list(range(samples))[rank::ranks][size * m : size * (m + 1)] for m in range(accumulation)]
        for rank in range(ranks)
    ]


def balanced_shares(lengths: Sequence[int], ranks: int, accumulation: int) -> Shares:
    """Share a step out so that micro-batches hold nearly equally many tokens.

    `lengths` are the tokens of the step's samples, at least one for each micro-batch. The longest
    sample goes first, each into the micro-batch that holds the least so far (longest processing
    time first: the largest is at most a third larger than it could be at best). Micro-batches of
    similar size are then computed at the same time by all ranks, and the larger ones go to the
    ranks that have had less.
    """
    heaviest_first = _spread(lengths, ranks * accumulation)
    shares: Shares = [[] for _ in range(ranks)]
    for micro_batch in range(accumulation):
        together = heaviest_first[micro_batch * ranks : (micro_batch + 1) * ranks]
        for share, places in zip(_lightest_first(shares, lengths), together, strict=True):
            share.append(places)
    return shares


def tokens_of(places: Sequence[int], lengths: Sequence[int]) -> int:
    """Return the number of tokens of some samples of a step."""
    return sum(lengths[place] for place in places)


def _spread(lengths: Sequence[int], bins: int) -> list[list[int]]:
    """Return places of samples in `bins` lists of nearly equal tokens, the heaviest first."""
    found: list[list[int]] = [[] for _ in range(bins)]
    held = [0] * bins
    for place in sorted(range(len(lengths)), key=lambda place: (-lengths[place], place)):
        lightest = held.index(min(held))
        found[lightest].append(place)
        held[lightest] += lengths[place]
    ordered = sorted(found, key=lambda places: -tokens_of(places, lengths))
    return [sorted(places) for places in ordered]


def _lightest_first(shares: Shares, lengths: Sequence[int]) -> Shares:
    return sorted(shares, key=lambda share: sum(tokens_of(p, lengths) for p in share))

"""Distribution of an optimizer step's samples over micro-batches and ranks, as plain lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Shares: TypeAlias = list[list[list[int]]]
"""Indices of a step's samples: `shares[rank][micro_batch]` is a list of indices."""


def same_shares(samples: int, ranks: int, accumulation: int) -> Shares:
    """Return the sample indices that each micro-batch has in the baseline, which pads samples.

    Rank r has the samples r, r + ranks, ... `samples` is the number of samples of the step, a
    multiple of ranks x accumulation. Each rank has `accumulation` micro-batches.
    """
    size = samples // (ranks * accumulation)
    return [
        [list(range(samples))[rank::ranks][size * m : size * (m + 1)] for m in range(accumulation)]
        for rank in range(ranks)
    ]


def balanced_shares(lengths: Sequence[int], ranks: int, accumulation: int) -> Shares:
    """Return a step's sample indices in micro-batches with nearly equal numbers of tokens.

    Each rank has `accumulation` micro-batches. `lengths` are the tokens of the step's samples, at
    least one sample for each micro-batch. By the rule "longest processing time first", samples are
    sorted by decreasing length, and each goes to the micro-batch with the fewest tokens so far. The
    largest micro-batch is at most a third above the optimum. At any time all ranks compute
    micro-batches of similar size, and the larger ones go to the ranks with fewer tokens so far.
    """
    heaviest_first = _spread(lengths, ranks * accumulation)
    shares: Shares = [[] for _ in range(ranks)]
    for micro_batch in range(accumulation):
        together = heaviest_first[micro_batch * ranks : (micro_batch + 1) * ranks]
        for share, places in zip(_lightest_first(shares, lengths), together, strict=True):
            share.append(places)
    return shares


def tokens_of(places: Sequence[int], lengths: Sequence[int]) -> int:
    """Return the total tokens of the samples `places`, from the tokens `lengths` of all samples."""
    return sum(lengths[place] for place in places)


def _spread(lengths: Sequence[int], bins: int) -> list[list[int]]:
    """Return sample indices in `bins` lists with nearly equal tokens, the largest list first.

    `lengths` are the tokens of the samples.
    """
    lists: list[list[int]] = [[] for _ in range(bins)]
    held = [0] * bins
    for place in sorted(range(len(lengths)), key=lambda place: (-lengths[place], place)):
        lightest = held.index(min(held))
        lists[lightest].append(place)
        held[lightest] += lengths[place]
    ordered = sorted(lists, key=lambda places: -tokens_of(places, lengths))
    return [sorted(places) for places in ordered]


def _lightest_first(shares: Shares, lengths: Sequence[int]) -> Shares:
    return sorted(shares, key=lambda share: sum(tokens_of(p, lengths) for p in share))

"""The design's balance, for every number of stacks and every seed."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_bench.runner.williams_design import williams_rounds

SIZES = st.integers(min_value=2, max_value=6)
SEEDS = st.integers(min_value=0, max_value=10_000)


def full_design(size: int, seed: int) -> list[list[str]]:
    return williams_rounds("abcdef"[:size], size if size % 2 == 0 else 2 * size, seed)


@given(SIZES, SEEDS, st.integers(min_value=1, max_value=15))
def test_each_round_holds_every_stack_once(size, seed, rounds):
    stacks = "abcdef"[:size]
    made = williams_rounds(stacks, rounds, seed)
    assert len(made) == rounds
    assert all(sorted(one) == list(stacks) for one in made)


@given(SIZES, SEEDS)
def test_every_stack_stands_equally_often_in_every_place(size, seed):
    places = Counter((p, name) for row in full_design(size, seed) for p, name in enumerate(row))
    assert len(places) == size * size
    assert len(set(places.values())) == 1


@given(SIZES, SEEDS)
def test_every_stack_follows_every_other_equally_often(size, seed):
    neighbours = Counter(pair for row in full_design(size, seed) for pair in pairwise(row))
    assert len(neighbours) == size * (size - 1)
    assert len(set(neighbours.values())) == 1


@given(SEEDS)
def test_two_stacks_alternate(seed):
    first, *others = williams_rounds(["x", "y"], 5, seed)
    back = first[::-1]
    assert others == [back, first, back, first]


@given(SIZES, SEEDS)
def test_the_same_seed_gives_the_same_order(size, seed):
    assert full_design(size, seed) == full_design(size, seed)


def test_seeds_deal_the_order():
    assert len({tuple(map(tuple, full_design(3, seed))) for seed in range(50)}) > 6


@pytest.mark.parametrize(("stacks", "expected"), [(["a"], [["a"], ["a"]]), ([], [[], []])])
def test_one_stack_or_none_needs_no_design(stacks, expected):
    assert williams_rounds(stacks, 2, 7) == expected

"""Distribution of a step's samples: each once, as the baseline does or by tokens."""

from itertools import chain

import numpy as np
import pytest
from accel_bench_padding_free.sample_distribution import balanced_shares, same_shares, tokens_of


def flat(shares):
    return sorted(chain.from_iterable(chain.from_iterable(shares)))


@pytest.mark.parametrize("ranks, accumulation", [(1, 1), (1, 4), (2, 2), (4, 1)])
def test_every_sample_is_in_one_micro_batch_and_none_is_empty(ranks, accumulation):
    lengths = [int(n) for n in np.random.default_rng(0).lognormal(5, 0.8, 16)]
    for shares in (
        same_shares(len(lengths), ranks, accumulation),
        balanced_shares(lengths, ranks, accumulation),
    ):
        assert flat(shares) == list(range(len(lengths)))
        assert [len(share) for share in shares] == [accumulation] * ranks
        assert all(places for share in shares for places in share)


def test_the_same_shares_are_those_of_padded_batches():
    assert same_shares(8, 2, 2) == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]


def test_balanced_micro_batches_hold_nearly_the_same_number_of_tokens():
    lengths = [100, 1, 1, 1, 50, 49, 48, 50]
    shares = balanced_shares(lengths, ranks=1, accumulation=3)
    held = [tokens_of(places, lengths) for places in shares[0]]
    assert held == [100, 100, 100]


def test_ranks_compute_micro_batches_of_similar_size_together_and_hold_about_as_much_in_all():
    lengths = [80, 70, 60, 50, 40, 30, 20, 10]
    first, second = balanced_shares(lengths, ranks=2, accumulation=2)
    for one, other in zip(first, second, strict=True):
        assert abs(tokens_of(one, lengths) - tokens_of(other, lengths)) <= 10
    assert sum(tokens_of(p, lengths) for p in first) == 180


def test_as_many_samples_as_micro_batches_get_one_each():
    assert balanced_shares([5, 900], ranks=2, accumulation=1) in ([[[1]], [[0]]], [[[0]], [[1]]])

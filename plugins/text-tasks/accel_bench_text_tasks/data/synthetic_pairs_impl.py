"""Make up pairs: a random first-order Markov chain, and its tokens renamed by a permutation."""

from __future__ import annotations

import numpy as np

from accel_bench.modeling.data.made_up import digest_of, markov_tokens
from accel_bench_text_tasks.data.pairs import PairOptions
from accel_bench_text_tasks.data.pairs_impl import PairDataset

RESERVED = 2
"""Ids that no pair has: those of padding and of the end."""

SUCCESSORS = 4
"""Tokens that can follow each token."""

RENAMING_STREAM = 3
"""Added to the seed for the permutation."""


def make_up(options: PairOptions, sequence_length: int, seed: int) -> PairDataset:
    """Make pairs that options, length and seed alone decide; each side is as long as it may be."""
    ids, shape = options.vocab_size - RESERVED, (options.samples, sequence_length)
    made = markov_tokens(np.random.default_rng(seed), ids, SUCCESSORS, shape).reshape(-1)
    renamed = np.random.default_rng((seed, RENAMING_STREAM)).permutation(ids).astype(np.uint32)
    tokens = np.concatenate((made, renamed[made])) + np.uint32(RESERVED)
    starts, whole = np.arange(options.samples, dtype=np.int64) * sequence_length, len(made)
    ends = starts + sequence_length
    return PairDataset(
        tokens=tokens,
        bounds=np.stack((starts, ends, starts + whole, ends + whole), axis=1),
        sequence_length=sequence_length,
        vocab_size=options.vocab_size,
        pad_token_id=0,
        fingerprint=digest_of(made.tobytes()),
        more_samples="raise data.samples",
    )

"""Make up token ids: a random first-order Markov chain, or noise."""

from __future__ import annotations

import hashlib

import numpy as np

from accel_bench.builtin.dataset_impl import TokenDataset, Tokens
from accel_bench.builtin.synthetic import SyntheticOptions


def make_up(options: SyntheticOptions, sequence_length: int, seed: int) -> TokenDataset:
    """Make a dataset that options, length and seed alone decide."""
    generator = np.random.default_rng(seed)
    shape = (options.samples, sequence_length)
    if options.pattern == "uniform":
        drawn = generator.integers(options.distinct_tokens, size=shape, dtype=np.uint32)
    else:
        drawn = _walk(generator, options.distinct_tokens, options.successors, shape)
    return TokenDataset.of_rows(
        drawn,
        vocab_size=options.vocab_size,
        fingerprint=hashlib.sha256(drawn.tobytes()).hexdigest()[:24],
        more_samples="raise data.samples",
    )


def _walk(
    generator: np.random.Generator, tokens: int, successors: int, shape: tuple[int, int]
) -> Tokens:
    """Walk a random Markov chain, all samples in parallel.

    Each token has `successors` equally likely followers, so that no model can get below a loss of
    about log(successors) nats. Followers are drawn by Zipf's law, as the words of a language are: a
    model that knows the frequencies alone beats chance, so the loss falls from the first steps on.
    """
    frequency = 1.0 / np.arange(1, tokens + 1)
    frequency /= frequency.sum()
    followers = generator.choice(tokens, size=(tokens, successors), p=frequency).astype(np.uint32)
    choices = generator.integers(successors, size=shape)
    walked = np.empty(shape, dtype=np.uint32)
    walked[:, 0] = generator.choice(tokens, size=shape[0], p=frequency)
    for position in range(1, shape[1]):
        walked[:, position] = followers[walked[:, position - 1], choices[:, position]]
    return walked

"""Synthetic tokens that a model can learn."""

from __future__ import annotations

import hashlib

import numpy as np

from accel_bench.modeling.data.token_batches import Tokens


def markov_tokens(
    generator: np.random.Generator, tokens: int, successors: int, shape: tuple[int, int]
) -> Tokens:
    """Return random walks of a Markov chain of `tokens` states, of `shape` (samples, length).

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


def digest_of(content: bytes) -> str:
    """Return the first 24 hex digits of the SHA-256 of synthetic content."""
    return hashlib.sha256(content).hexdigest()[:24]

"""Synthetic token ids from a random Markov chain of first order or noise, and random lengths."""

from __future__ import annotations

from typing import Any

import numpy as np

from accel_bench.errors import ScenarioError
from accel_bench.modeling.data.batch_plan import Integers
from accel_bench.modeling.data.made_up import digest_of, markov_tokens
from accel_bench.modeling.data.token_batches import TokenDataset
from accel_bench_huggingface.synthetic import Lengths, SyntheticOptions

LENGTHS_STREAM = 1
"""Further element of the seed for lengths, so that drawing them does not change the tokens."""


def make_up(options: SyntheticOptions, sequence_length: int, seed: int) -> TokenDataset:
    """Return samples of made-up tokens, determined by the options, `sequence_length` and `seed`.

    Random lengths change no token: a shorter sample is the beginning of a full one. Raises
    ScenarioError if the minimum length exceeds `sequence_length`.
    """
    generator = np.random.default_rng(seed)
    shape = (options.samples, sequence_length)
    if options.pattern == "uniform":
        drawn = generator.integers(options.distinct_tokens, size=shape, dtype=np.uint32)
    else:
        drawn = markov_tokens(generator, options.distinct_tokens, options.successors, shape)
    fingerprint = digest_of(drawn.tobytes())
    lengths: Integers = np.full(options.samples, sequence_length, dtype=np.int64)
    if options.lengths is not None:
        lengths = draw_lengths(options.lengths, options.samples, sequence_length, seed)
        fingerprint = digest_of(fingerprint.encode() + lengths.tobytes())
    return TokenDataset(
        tokens=drawn.reshape(-1),
        starts=np.arange(options.samples, dtype=np.int64) * sequence_length,
        lengths=lengths,
        sequence_length=sequence_length,
        vocab_size=options.vocab_size,
        pad_token_id=0,
        fingerprint=fingerprint,
        more_samples="raise data.samples",
    )


def evidence(made: TokenDataset, options: SyntheticOptions) -> dict[str, Any]:
    """Return JSON evidence of the dataset: samples, tokens, and lengths if they are random."""
    facts: dict[str, Any] = {
        "samples": len(made),
        "tokens": int(made.lengths.sum()),
        "vocab_size": made.vocab_size,
        "distinct_tokens": options.distinct_tokens,
        "pattern": options.pattern,
        "fingerprint": made.fingerprint,
        "constant_length": options.lengths is None,
    }
    if options.lengths is not None:
        facts["shortest"] = int(made.lengths.min())
        facts["mean_length"] = float(made.lengths.mean())
        facts["longest"] = int(made.lengths.max())
        facts["share_cut"] = float((made.lengths == made.sequence_length).mean())
    return facts


def draw_lengths(lengths: Lengths, samples: int, longest: int, seed: int) -> Integers:
    """Return log-normal sample lengths in tokens between `lengths.minimum` and `longest`.

    Longer lengths are cut to `longest`, as text is. The array has shape (samples,). Raises
    ScenarioError if the minimum exceeds `longest`.
    """
    if lengths.minimum > longest:
        raise ScenarioError(
            f"data.lengths.minimum is {lengths.minimum}, but data.sequence_length is {longest}: "
            "make the minimum smaller, or the sequence length larger"
        )
    generator = np.random.default_rng((seed, LENGTHS_STREAM))
    drawn = np.exp(np.log(lengths.median) + lengths.sigma * generator.standard_normal(samples))
    return np.clip(np.rint(np.minimum(drawn, longest)), lengths.minimum, longest).astype(np.int64)

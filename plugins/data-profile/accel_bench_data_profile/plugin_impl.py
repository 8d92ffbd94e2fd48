"""Samples with the lengths of a profile, of random tokens whose order a model can learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from accel_bench.modeling.data.batch_plan import Integers
from accel_bench.modeling.data.made_up import digest_of, markov_tokens
from accel_bench.modeling.data.token_batches import TokenDataset
from accel_bench_data_profile.histogram import LengthHistogram, read_histogram
from accel_bench_data_profile.plugin import LengthProfileOptions

SUCCESSORS = 4
"""Number of tokens that can follow each token."""

LENGTHS_STREAM = 1
"""Further element of the seed for lengths, so that drawing them does not change the tokens."""


def lengths_of(options: LengthProfileOptions, seed: int) -> Integers:
    """Return the length in tokens of each sample of an epoch: the profile's, shuffled by `seed`."""
    return draw(read_histogram(Path(options.path)), options.samples, seed)


def draw(histogram: LengthHistogram, samples: int, seed: int) -> Integers:
    """Return the profile's sample lengths in tokens, or `samples` evenly chosen ones, shuffled.

    Sample k of n is at the quantile (k + 0.5) / n of the profile, so that any choice has the
    profile's distribution. Within a bin lengths differ by at most 1 and have the bin's mean.
    """
    number = min(samples, histogram.samples)
    counts = np.array([bucket.samples for bucket in histogram.bins], dtype=np.int64)
    whole, more = np.divmod(
        np.array([bucket.tokens for bucket in histogram.bins], dtype=np.int64), counts
    )
    places = ((np.arange(number) + 0.5) * (histogram.samples / number)).astype(np.int64)
    ends = np.cumsum(counts)
    bins = np.searchsorted(ends, places, side="right")
    within = places - (ends - counts)[bins]
    lengths = whole[bins] + (within < more[bins])
    return np.random.default_rng((seed, LENGTHS_STREAM)).permutation(lengths)


def make_up(options: LengthProfileOptions, sequence_length: int, seed: int) -> TokenDataset:
    """Return samples of random tokens with the lengths of the profile, cut to `sequence_length`.

    They depend only on the profile, the options, `sequence_length` and the seed.
    """
    lengths = np.minimum(lengths_of(options, seed), sequence_length)
    shape = (len(lengths), sequence_length)
    drawn = markov_tokens(np.random.default_rng(seed), options.vocab_size, SUCCESSORS, shape)
    return TokenDataset(
        tokens=drawn.reshape(-1),
        starts=np.arange(len(lengths), dtype=np.int64) * sequence_length,
        lengths=lengths,
        sequence_length=sequence_length,
        vocab_size=options.vocab_size,
        pad_token_id=0,
        fingerprint=digest_of(drawn.tobytes() + lengths.tobytes()),
        more_samples="raise data.samples",
    )


def evidence(made: TokenDataset) -> dict[str, Any]:
    """Return JSON evidence on a data set: numbers of samples and tokens, and its lengths."""
    return {
        "samples": len(made),
        "tokens": int(made.lengths.sum()),
        "vocab_size": made.vocab_size,
        "fingerprint": made.fingerprint,
        "shortest": int(made.lengths.min()),
        "mean_length": float(made.lengths.mean()),
        "longest": int(made.lengths.max()),
        "share_cut": float((made.lengths == made.sequence_length).mean()),
        "constant_length": bool(made.lengths.min() == made.lengths.max()),
    }

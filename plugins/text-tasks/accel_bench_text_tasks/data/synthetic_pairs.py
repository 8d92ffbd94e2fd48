"""The data plugin `synthetic-pairs`: made-up sequences, each with one that follows from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel_bench import Run
from accel_bench_text_tasks.data.pairs import PairOptions, Pairs

if TYPE_CHECKING:
    from accel_bench_text_tasks.data.pairs_impl import PairDataset

RESERVED = 2
"""Ids that no pair has: those of padding and of the end."""

SUCCESSORS = 4
"""Tokens that can follow each token."""

RENAMING_STREAM = 3
"""Added to the seed for the permutation."""


class SyntheticPairs(Pairs[PairOptions]):
    """Seeded made-up tokens, and the same in another vocabulary, which a model can learn."""

    Options = PairOptions

    def _dataset(self, run: Run) -> PairDataset:
        """Walk a random first-order Markov chain, and rename its tokens by a permutation.

        Options, length and seed alone decide; each side is as long as it may be.
        """
        import numpy as np

        from accel_bench.modeling.data.made_up import digest_of, markov_tokens
        from accel_bench_text_tasks.data.pairs_impl import PairDataset

        options, seed = self.options, run.scenario.data.seed
        length, ids = run.scenario.data.sequence_length, options.vocab_size - RESERVED
        generator, shape = np.random.default_rng(seed), (options.samples, length)
        made = markov_tokens(generator, ids, SUCCESSORS, shape).reshape(-1)
        renamed = np.random.default_rng((seed, RENAMING_STREAM)).permutation(ids).astype(np.uint32)
        starts, whole = np.arange(options.samples, dtype=np.int64) * length, len(made)
        ends = starts + length
        return PairDataset(
            tokens=np.concatenate((made, renamed[made])) + np.uint32(RESERVED),
            bounds=np.stack((starts, ends, starts + whole, ends + whole), axis=1),
            sequence_length=length,
            vocab_size=options.vocab_size,
            pad_token_id=0,
            fingerprint=digest_of(made.tobytes()),
            more_samples="raise data.samples",
        )

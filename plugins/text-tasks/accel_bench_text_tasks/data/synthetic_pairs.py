"""The data plugin `synthetic-pairs`: made-up sequences, each with one that follows from it."""

from __future__ import annotations

from typing import Any

from accel_bench import Run
from accel_bench_text_tasks.data.pairs import PairOptions, Pairs


class SyntheticPairs(Pairs[PairOptions]):
    """Seeded made-up tokens, and the same in another vocabulary, which a model can learn."""

    Options = PairOptions

    def _dataset(self, run: Run) -> Any:
        from accel_bench_text_tasks.data import synthetic_pairs_impl

        data = run.scenario.data
        return synthetic_pairs_impl.make_up(self.options, data.sequence_length, data.seed)

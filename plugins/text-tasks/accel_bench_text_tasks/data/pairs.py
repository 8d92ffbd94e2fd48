"""What data plugins of pairs share: options, and the hooks that make batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import Field

from accel_bench import Batch, Options, Run, hookimpl
from accel_bench.modeling.data.data_plugins import SampleData

if TYPE_CHECKING:
    from accel_bench.modeling.data.batch_plan import BatchPlan, Padding
    from accel_bench.modeling.data.sample_batches import Collate
    from accel_bench_text_tasks.data.pairs_impl import PairDataset


class PairOptions(Options):
    """Options that all data of pairs have."""

    padding: Literal["max_length", "longest"] = "max_length"
    """Pad to `data.sequence_length`, or to the longest of the micro-batch."""

    vocab_size: int = Field(2048, ge=262, le=10_000_000)
    """Largest vocabulary; at most that of the model."""

    samples: int = Field(4096, ge=1, le=10_000_000)
    """Most pairs of an epoch."""


OptionsT = TypeVar("OptionsT", bound=PairOptions)


class Pairs(SampleData[OptionsT]):
    """Base of data plugins of pairs: `_dataset` makes them."""

    @hookimpl
    def load_data(self, run: Run) -> PairDataset:
        """Make or map the pairs."""
        from accel_bench_text_tasks.data import pairs_impl

        dataset = self._dataset(run)
        run.on_evidence(lambda: pairs_impl.evidence(dataset, self.options.padding))
        return dataset

    def padding(self) -> Padding:
        """Return the padding of the options."""
        return self.options.padding

    def collate(self, run: Run, plan: BatchPlan) -> Collate:
        """Return what makes batches in the form that the task reads."""
        from accel_bench_text_tasks.data import pairs_impl

        return pairs_impl.collate_of(run, plan)

    @hookimpl
    def simulate_batch(self, run: Run, micro_batch_size: int, sequence_length: int) -> Batch:
        """Return pairs of which both sequences are as long as they may be."""
        from accel_bench_text_tasks.data import pairs_impl

        return pairs_impl.simulated_batch(run, micro_batch_size, sequence_length)

    def _dataset(self, run: Run) -> Any:
        raise NotImplementedError

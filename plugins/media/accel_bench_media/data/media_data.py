"""Base class of the data plugins of images and speech."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from accel_bench import Batch, Options, Run, hookimpl
from accel_bench.modeling.data.data_plugins import SampleData

if TYPE_CHECKING:
    from accel_bench.modeling.data.batch_plan import BatchPlan, Order
    from accel_bench.modeling.data.sample_batches import Collate

OptionsT = TypeVar("OptionsT", bound=Options)


class MediaData(SampleData[OptionsT]):
    """Base class of data plugins whose batches are made in a separate module with torch."""

    _more_samples = "raise data.samples"

    def _impl(self) -> Any:
        """Return the module that implements `collate_of` and `simulated_batch`."""
        raise NotImplementedError

    def _order(self, run: Run, plan: BatchPlan) -> Order | None:
        """Return a function that orders an epoch's samples; None for a seeded random order."""
        return None

    def collate(self, run: Run, plan: BatchPlan) -> Collate:
        """Return the function that makes batches for the run's task and model."""
        collate: Collate = self._impl().collate_of(run, self.options, plan)
        return collate

    def batches(self, run: Run, plan: BatchPlan, collate: Collate) -> Iterator[Batch]:
        """Yield micro-batches endlessly, made by `collate` of samples in the order of `_order`."""
        from accel_bench.modeling.data.sample_batches import micro_batches

        count, order = len(run.dataset), self._order(run, plan)
        return micro_batches(count, plan, collate, more_samples=self._more_samples, order=order)

    @hookimpl
    def simulate_batch(self, run: Run, micro_batch_size: int) -> Batch:
        """Return a micro-batch of `micro_batch_size` samples of the largest size for the task."""
        batch: Batch = self._impl().simulated_batch(run, self.options, micro_batch_size)
        return batch

"""Base classes of data plugins, with hooks that make batches of the loaded dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from accel_bench import Batch, Options, Plugin, Run, hookimpl

if TYPE_CHECKING:
    from accel_bench.modeling.data.batch_plan import BatchPlan, Padding
    from accel_bench.modeling.data.sample_batches import Collate

OptionsT = TypeVar("OptionsT", bound=Options)


class TokenData(Plugin[OptionsT]):
    """Base of data plugins whose dataset is a `TokenDataset`."""

    def padding(self) -> Padding:
        """Return the kind of padding for samples of unequal lengths."""
        raise NotImplementedError

    @hookimpl
    def build_batches(self, run: Run) -> Iterator[Batch]:
        """Yield this rank's micro-batches without end, padded as `padding()` says."""
        from accel_bench.modeling.data import token_batches

        return token_batches.batches_of(run, self.padding())

    @hookimpl
    def build_evaluation_batches(self, run: Run) -> Iterable[Batch]:
        """Return the batches of held-out samples, padded as in training."""
        from accel_bench.modeling.data import token_batches

        return token_batches.evaluation_batches_of(run, self.padding())


class SampleData(Plugin[OptionsT]):
    """Base of data plugins whose samples are not rows of tokens, but for example images."""

    def padding(self) -> Padding:
        """Return the kind of padding for samples of unequal lengths."""
        return "none"

    def collate(self, run: Run, plan: BatchPlan) -> Collate:
        """Return the function that makes batches for the run's task; ScenarioError if none can."""
        raise NotImplementedError

    def batches(self, run: Run, plan: BatchPlan, collate: Collate) -> Iterator[Batch]:
        """Yield this rank's micro-batches without end; `run.dataset` must implement `Sampled`."""
        from accel_bench.modeling.data import batch_plan, sample_batches

        return sample_batches.collated(batch_plan.steps(run.dataset, plan), plan, collate)

    @hookimpl
    def build_batches(self, run: Run) -> Iterator[Batch]:
        """Yield this rank's micro-batches without end, collated for the run's task."""
        from accel_bench.modeling.data import token_batches

        plan = token_batches.plan_of(run, self.padding())
        return self.batches(run, plan, self.collate(run, plan))

    @hookimpl
    def build_evaluation_batches(self, run: Run) -> Iterable[Batch]:
        """Return the batches of held-out samples, collated for the run's task."""
        from accel_bench.modeling.data import sample_batches, token_batches

        plan, samples = token_batches.evaluation_plan(run, self.padding())
        return sample_batches.SampleEvaluation(samples, plan, self.collate(run, plan))

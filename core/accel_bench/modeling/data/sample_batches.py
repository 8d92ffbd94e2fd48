"""Batches of samples of any kind, in the endless order of `batch_plan`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from accel_bench import Batch, TokenCounts
from accel_bench.modeling.data.batch_plan import (
    BatchPlan,
    Integers,
    Order,
    endless,
    shares_of,
    training_samples,
)
from accel_bench.modeling.data.token_batches import HELD_OUT_PLACES, pinned, without_labels


class Step(NamedTuple):
    """Samples of one optimizer step, over all ranks, or of an evaluation."""

    samples: Integers
    """Indices of the samples, each once, shape (samples,)."""

    first: int
    """Position of the first sample in the endless order of samples."""

    def places(self, samples: Integers) -> Integers:
        """Return the positions of some of the step's samples in the endless order."""
        order = np.argsort(self.samples)
        indices: Integers = order[np.searchsorted(self.samples, samples, sorter=order)]
        return self.first + indices


Collate: TypeAlias = Callable[[Integers, Step], Batch]
"""Function that makes a micro-batch, given some of a step's sample indices and the step."""


def micro_batches(
    samples: int,
    plan: BatchPlan,
    collate: Collate,
    *,
    more_samples: str,
    order: Order | None = None,
) -> Iterator[Batch]:
    """Yield without end the micro-batches that `plan` assigns to this rank.

    `samples` is the number of all samples; held-out ones are left out. `order` is by default the
    seeded permutation of `sample_order`. The call raises ScenarioError if the training samples do
    not fill one step; the error includes `more_samples`, advice on how to get more samples.
    """
    training = training_samples(samples, plan, "samples", more_samples)
    return collated(endless(training, plan, order), plan, collate)


@dataclass(frozen=True)
class SampleEvaluation:
    """Batches of an evaluation on one rank, an iterable for `build_evaluation_batches`."""

    samples: Integers
    """Indices of the evaluated held-out samples, over all ranks, shape (samples,)."""

    plan: BatchPlan
    collate: Collate

    def __iter__(self) -> Iterator[Batch]:
        everything = Step(self.samples, HELD_OUT_PLACES)
        for mine, counts in shares_of(self.samples.tolist(), self.plan):
            batch = self.collate(np.array(mine, dtype=np.int64), everything)
            yield batch if counts else without_labels(batch)


def batch_of(
    tensors: dict[str, torch.Tensor], plan: BatchPlan, tokens: TokenCounts, supervised: int
) -> Batch:
    """Return a micro-batch of named tensors; their first dimension is the number of samples.

    `supervised` is the number of supervised elements of the whole step, over all ranks.
    """
    samples = len(next(iter(tensors.values())))
    return Batch(pinned(tensors, plan), samples, tokens, supervised)


def collated(steps: Iterator[Integers], plan: BatchPlan, collate: Collate) -> Iterator[Batch]:
    """Yield this rank's micro-batches; `steps` yields each step's sample indices on all ranks."""
    first = 0
    for samples in steps:
        step, first = Step(samples, first), first + len(samples)
        mine = samples[plan.rank :: plan.data_parallel]
        for micro in mine.reshape(plan.gradient_accumulation, plan.micro_batch_size):
            yield collate(micro, step)

"""Samples of any kind, in the endless, sharded, seeded order in which they become batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from accel_bench import Batch, TokenCounts
from accel_bench.builtin.data.dataset_impl import (
    BatchPlan,
    Integers,
    sample_order,
    shares_of,
    split_samples,
    without_labels,
)
from accel_bench.errors import ScenarioError

Collate: TypeAlias = Callable[[Integers, Integers], Batch]
"""Makes a micro-batch of the samples of the first argument; the second are those of its step."""

Order: TypeAlias = Callable[[Integers, int], Integers]
"""Returns the order of samples in an epoch."""


def micro_batches(
    samples: int,
    plan: BatchPlan,
    collate: Collate,
    *,
    more_samples: str,
    order: Order | None = None,
) -> Iterator[Batch]:
    """Yield this rank's micro-batches without end, divided as those of tokens are.

    `order` is the seeded permutation of `sample_order` unless it is given; `more_samples` says how
    a user gets more. Held-out samples are left out. Raises ScenarioError at once when the others
    do not fill one step.
    """
    training, held_out = split_samples(samples, plan.held_out, plan.seed)
    if len(training) < plan.global_batch_size:
        beside = f" beside {len(held_out)} that are held out" if len(held_out) else ""
        raise ScenarioError(
            f"the data holds {len(training)} samples{beside}, but one optimizer step takes "
            f"{plan.global_batch_size} (train.micro_batch_size {plan.micro_batch_size} x "
            f"gradient_accumulation {plan.gradient_accumulation} x {plan.data_parallel} devices): "
            f"{more_samples}, or make the batch smaller"
        )
    return _collated(training, plan, collate, order or _shuffled_by(plan.seed))


@dataclass(frozen=True)
class SampleEvaluation:
    """Batches of held-out samples for one rank, as `build_evaluation_batches` returns them."""

    samples: Integers
    """Held-out samples that the model is evaluated on, over all ranks, shape (samples,)."""

    plan: BatchPlan
    collate: Collate

    def __iter__(self) -> Iterator[Batch]:
        for mine, counts in shares_of(self.samples.tolist(), self.plan):
            batch = self.collate(np.array(mine, dtype=np.int64), self.samples)
            yield batch if counts else without_labels(batch)


def batch_of(
    tensors: dict[str, torch.Tensor], plan: BatchPlan, tokens: TokenCounts, supervised: int
) -> Batch:
    """Return a micro-batch of tensors whose first dimension is that of its samples."""
    inputs: dict[str, Any] = tensors
    if plan.pin:
        inputs = {name: tensor.pin_memory() for name, tensor in tensors.items()}
    samples = len(next(iter(tensors.values())))
    return Batch(inputs, samples, tokens, supervised)


def _shuffled_by(seed: int) -> Order:
    return lambda samples, epoch: samples[sample_order(len(samples), seed, epoch)]


def _collated(
    training: Integers, plan: BatchPlan, collate: Collate, order: Order
) -> Iterator[Batch]:
    size, epoch = plan.global_batch_size, 0
    while True:
        samples = order(training, epoch)
        for first in range(0, len(samples) - size + 1, size):
            step = samples[first : first + size]
            mine = step[plan.rank :: plan.data_parallel]
            for micro in mine.reshape(plan.gradient_accumulation, plan.micro_batch_size):
                yield collate(micro, step)
        epoch += 1

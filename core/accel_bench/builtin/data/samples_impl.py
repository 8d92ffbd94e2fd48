"""Samples of any kind, in the endless, sharded, seeded order in which they become batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch

from accel_bench import Batch, TokenCounts
from accel_bench.builtin.data.dataset_impl import BatchPlan, Integers, sample_order
from accel_bench.errors import ScenarioError

Collate: TypeAlias = Callable[[Integers, Integers], Batch]
"""Makes a micro-batch of the samples of the first argument; the second are those of its step."""

Order: TypeAlias = Callable[[int], Integers]
"""Returns the order of all samples in an epoch."""


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
    a user gets more. Raises ScenarioError at once when the samples do not fill one step.
    """
    if samples < plan.global_batch_size:
        raise ScenarioError(
            f"the data holds {samples} samples, but one optimizer step takes "
            f"{plan.global_batch_size} (train.micro_batch_size {plan.micro_batch_size} x "
            f"gradient_accumulation {plan.gradient_accumulation} x {plan.data_parallel} devices): "
            f"{more_samples}, or make the batch smaller"
        )
    return _collated(
        plan, collate, order or (lambda epoch: sample_order(samples, plan.seed, epoch))
    )


def batch_of(
    tensors: dict[str, torch.Tensor], plan: BatchPlan, tokens: TokenCounts, supervised: int
) -> Batch:
    """Return a micro-batch of tensors whose first dimension is that of its samples."""
    inputs: dict[str, Any] = tensors
    if plan.pin:
        inputs = {name: tensor.pin_memory() for name, tensor in tensors.items()}
    return Batch(inputs, plan.micro_batch_size, tokens, supervised)


def _collated(plan: BatchPlan, collate: Collate, order: Order) -> Iterator[Batch]:
    size, epoch = plan.global_batch_size, 0
    while True:
        samples = order(epoch)
        for first in range(0, len(samples) - size + 1, size):
            step = samples[first : first + size]
            mine = step[plan.rank :: plan.data_parallel]
            for micro in mine.reshape(plan.gradient_accumulation, plan.micro_batch_size):
                yield collate(micro, step)
        epoch += 1

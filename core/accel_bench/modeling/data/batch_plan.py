"""Endless, seeded order of samples, and its division among ranks and optimizer steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from accel_bench.errors import ScenarioError

HELD_OUT_STREAM = 2**63
"""Part of the seed that selects held-out samples, where other seeds have the epoch."""

Padding = Literal["none", "max_length", "longest"]
"""Padding of samples: none, to the sequence length, or to the micro-batch's longest."""

Integers: TypeAlias = npt.NDArray[np.int64]

Order: TypeAlias = Callable[[Integers, int], Integers]
"""Function that returns the given sample indices in the order of the given epoch."""


@dataclass(frozen=True)
class BatchPlan:
    """Division of samples into the micro-batches of one data-parallel rank."""

    micro_batch_size: int
    gradient_accumulation: int = 1
    rank: int = 0
    data_parallel: int = 1
    seed: int = 0
    padding: Padding = "none"
    pin: bool = False
    """True for tensors in page-locked memory, from which copies to a GPU need not wait."""

    held_out: int | float = 0
    """Held-out samples: their number, or their fraction of all."""

    labels_of: Callable[[Any, int], tuple[Any, Any]] | None = None
    """Function that returns inputs and labels of a sample, given its position in the endless order.
    None if each token is its own label, and the model shifts the labels."""

    @property
    def global_batch_size(self) -> int:
        """Samples of one optimizer step over all ranks."""
        return self.micro_batch_size * self.gradient_accumulation * self.data_parallel


class Sampled(Protocol):
    """Interface of a dataset whose samples have lengths."""

    @property
    def lengths(self) -> Integers:
        """Length of each sample in tokens."""

    @property
    def sequence_length(self) -> int:
        """Largest length that a sample may have, in tokens."""

    @property
    def more_samples(self) -> str:
        """Advice to users on how to get more samples, as part of a sentence."""

    def __len__(self) -> int: ...


T = TypeVar("T")


def steps(dataset: Sampled, plan: BatchPlan) -> Iterator[Integers]:
    """Yield without end the sample indices of each optimizer step, over all ranks.

    The call raises ScenarioError if the samples do not fill one step, or have no token to predict.
    """
    samples = f"samples of {dataset.sequence_length} tokens"
    training = training_samples(len(dataset), plan, samples, dataset.more_samples)
    if plan.labels_of is None and int(dataset.lengths.max()) < 2:
        raise ScenarioError(
            "a causal model learns from the second token on, so that samples of one token teach "
            "nothing: set data.sequence_length to 2 or more"
        )
    return endless(training, plan)


def endless(samples: Integers, plan: BatchPlan, order: Order | None = None) -> Iterator[Integers]:
    """Yield without end the sample indices of each full optimizer step, over all ranks.

    `samples` are the indices to train on. `order` permutes them in each epoch; the default is the
    seeded permutation of `sample_order`.
    """
    size = plan.global_batch_size
    for epoch in itertools.count():
        if order is None:
            ordered = samples[sample_order(len(samples), plan.seed, epoch)]
        else:
            ordered = order(samples, epoch)
        for first in range(0, len(ordered) - size + 1, size):
            yield ordered[first : first + size]


def sample_order(samples: int, seed: int, epoch: int) -> Integers:
    """Return a permutation of the indices of `samples` samples, determined by seed and epoch."""
    return np.random.default_rng((seed, epoch)).permutation(samples)


def training_samples(count: int, plan: BatchPlan, samples: str, more_samples: str) -> Integers:
    """Return the indices of training samples: all of `count` samples but the held-out samples.

    Raises ScenarioError if they do not fill one step. In the error, `samples` says what a sample
    is, and `more_samples` is advice on how to get more.
    """
    training, held_out = split_samples(count, plan.held_out, plan.seed)
    if len(training) < plan.global_batch_size:
        beside = f" beside {len(held_out)} that are held out" if len(held_out) else ""
        raise ScenarioError(
            f"the data holds {len(training)} {samples}{beside}, but one optimizer step takes "
            f"{plan.global_batch_size} (train.micro_batch_size {plan.micro_batch_size} x "
            f"gradient_accumulation {plan.gradient_accumulation} x {plan.data_parallel} devices): "
            f"{more_samples}, or make the batch smaller"
        )
    return training


def split_samples(samples: int, held_out: int | float, seed: int) -> tuple[Integers, Integers]:
    """Return the indices of training samples, and of held-out samples chosen by the seed.

    `samples` is the number of all samples, and `held_out` a number or a fraction of them. Raises
    ScenarioError if all samples would be held out.
    """
    count = held_out if isinstance(held_out, int) else max(1, round(held_out * samples))
    if not count:
        return np.arange(samples, dtype=np.int64), np.empty(0, dtype=np.int64)
    if count >= samples:
        raise ScenarioError(
            f"data.held_out: {held_out} of {samples} samples are {count}, which leaves none to "
            "train on: hold fewer out, or bring more data"
        )
    chosen = np.random.default_rng((seed, HELD_OUT_STREAM)).permutation(samples)[:count]
    return np.setdiff1d(np.arange(samples, dtype=np.int64), chosen), chosen.astype(np.int64)


def shares_of(rows: Sequence[T], plan: BatchPlan) -> Iterator[tuple[Sequence[T], bool]]:
    """Yield this rank's rows of each evaluation batch, and whether they enter the results.

    Ranks that share a model must call the model equally often. A rank without rows of its own
    therefore gets the first rank's first row, which does not enter the results.
    """
    size = plan.global_batch_size
    for first in range(0, len(rows), size):
        of_all = rows[first : first + size]
        mine = of_all[plan.rank :: plan.data_parallel]
        yield mine or of_all[:1], bool(mine)

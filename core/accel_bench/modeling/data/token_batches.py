"""Tokenized samples, and their batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from accel_bench import Batch, Run, TokenCounts
from accel_bench.modeling.data.batch_plan import (
    BatchPlan,
    Integers,
    Padding,
    shares_of,
    split_samples,
    steps,
)

IGNORED_LABEL = -100
"""Label that torch's cross-entropy leaves out of the loss."""

Tokens: TypeAlias = npt.NDArray[np.uint32]
Flags: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TokenDataset:
    """Samples of tokens as windows into one flat array, which may be a memory-mapped file."""

    tokens: Tokens
    """All token ids, shape (tokens,)."""

    starts: Integers
    """Index of each sample's first token in `tokens`, shape (samples,)."""

    lengths: Integers
    """Length of each sample in tokens, from 1 to `sequence_length`, shape (samples,)."""

    sequence_length: int
    """Largest length that a sample may have, in tokens; the length for padding `max_length`."""

    vocab_size: int
    """Upper bound of the token ids, exclusive."""

    pad_token_id: int
    """Id of the padding token, which is never supervised."""

    fingerprint: str
    """Digest of the dataset in hexadecimal, equal for equal content."""

    more_samples: str = "bring more data"
    """Advice to users on how to get more samples, as part of a sentence."""

    tokenizer_path: Path | None = None
    """`tokenizer.json` that made the tokens; None for synthetic tokens."""

    supervised: Flags | None = None
    """Mask of the tokens that enter the loss, shape (tokens,); None if all do. The first token of a
    sample never enters the loss, since no token precedes it."""

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def supervised_lengths(self) -> Integers:
        """Number of supervised tokens of each sample, shape (samples,)."""
        if self.supervised is None:
            return self.lengths - 1
        return supervised_lengths(self.supervised, self.starts, self.lengths)

    def sample(self, index: int) -> Tokens:
        """Return the token ids of one sample, shape (its length,)."""
        start = self.starts[index]
        return self.tokens[start : start + self.lengths[index]]

    def training_samples(self, run: Run) -> Integers:
        """Return the indices of the samples that a run trains on: all that are not held out."""
        return split_samples(len(self), run.scenario.data.held_out, run.scenario.data.seed)[0]

    def labels(self, index: int) -> Integers:
        """Return the labels of one sample, shape (its length,): ids, or -100 if unsupervised."""
        ids = self.sample(index).astype(np.int64)
        if self.supervised is None:
            return ids
        start = self.starts[index]
        learned = np.array(self.supervised[start : start + self.lengths[index]])
        learned[0] = False
        return np.where(learned, ids, IGNORED_LABEL)

    def steps_of(self, run: Run) -> Iterator[Integers]:
        """Yield without end the sample indices of each optimizer step of a run, over all ranks.

        The indices, of shape (global batch size,), are in the order of `batches`, for plugins that
        make batches of another form. The call raises ScenarioError if the samples do not fill one
        step.
        """
        return steps(self, plan_of(run, "none"))


HELD_OUT_PLACES = 2**40
"""Position given to the first held-out sample, greater than all positions in training."""


def supervised_lengths(supervised: Flags, starts: Integers, lengths: Integers) -> Integers:
    """Return each sample's number of supervised tokens after its first, shape (samples,)."""
    counts = (
        np.count_nonzero(supervised[start + 1 : start + length])
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    )
    return np.fromiter(counts, dtype=np.int64, count=len(starts))


def kept_lengths(folder: Path) -> list[int]:
    """Return the lengths in tokens of the samples cached in a folder, from its `ends.npy`."""
    ends = np.load(folder / "ends.npy", allow_pickle=False)
    lengths: list[int] = np.diff(ends, prepend=0).tolist()
    return lengths


def windows(ends: Integers, sequence_length: int, packing: bool) -> tuple[Integers, Integers]:
    """Return the starts and the lengths of samples in the array of all documents' tokens.

    `ends` are the documents' ends. With `packing` each sample has `sequence_length` tokens, and a
    shorter rest is left out. Else each document is a sample, cut to at most that length.
    """
    if packing:
        full = np.arange(int(ends[-1]) // sequence_length, dtype=np.int64) * sequence_length
        return full, np.full(len(full), sequence_length, dtype=np.int64)
    starts = np.concatenate((np.zeros(1, dtype=np.int64), ends[:-1]))
    return starts, np.minimum(ends - starts, sequence_length)


def batches_of(run: Run, padding: Padding) -> Iterator[Batch]:
    """Yield without end the micro-batches of `run.dataset` for the run's rank.

    The call raises ScenarioError if the data has token ids beyond the loaded model's vocabulary.
    """
    check_vocabulary(run)
    return batches(run.dataset, plan_of(run, padding))


def check_vocabulary(run: Run) -> None:
    """Raise ScenarioError if the data has token ids beyond the loaded model's vocabulary."""
    model = run.model if run.unwrapped_model is None else run.unwrapped_model
    if hasattr(model, "config"):
        # Not at the top: a process that only tokenizes would wait for torch longer than it works.
        from accel_bench import check_fit

        check_fit(model.config, run)


def plan_of(run: Run, padding: Padding) -> BatchPlan:
    """Return the division of a run's samples into micro-batches."""
    train = run.scenario.train
    return BatchPlan(
        micro_batch_size=train.micro_batch_size,
        gradient_accumulation=train.gradient_accumulation,
        rank=run.data_rank,
        data_parallel=run.data_parallel,
        seed=run.scenario.data.seed,
        padding=padding,
        pin=run.device_type.pins_memory and run.device_type.module().is_available(),
        held_out=run.scenario.data.held_out,
        labels_of=run.task.labels_of(run) if run.task is not None else None,
    )


@dataclass(frozen=True)
class EvaluationBatches:
    """Batches of an evaluation on one rank, an iterable for `build_evaluation_batches`."""

    dataset: TokenDataset

    samples: Integers
    """Indices of the evaluated held-out samples, over all ranks, shape (samples,)."""

    plan: BatchPlan

    def __len__(self) -> int:
        return math.ceil(len(self.samples) / self.plan.global_batch_size)

    def __iter__(self) -> Iterator[Batch]:
        rows = [
            _row(self.dataset, self.plan, int(index), HELD_OUT_PLACES + place)
            for place, index in enumerate(self.samples)
        ]
        supervised = sum(row.supervised for row in rows)
        with_mask = _may_pad(self.dataset, self.plan)
        for mine, counts in shares_of(rows, self.plan):
            batch = _collate(self.dataset, mine, self.plan, with_mask, supervised)
            yield batch if counts else without_labels(batch)


def evaluation_batches_of(run: Run, padding: Padding) -> EvaluationBatches:
    """Return the batches of `run.dataset` that the run's rank evaluates.

    They are at most `evaluate.batches`. If that is unset, all held-out samples are evaluated.
    """
    plan, samples = evaluation_plan(run, padding)
    return EvaluationBatches(run.dataset, samples, plan)


def evaluation_plan(run: Run, padding: Padding) -> tuple[BatchPlan, Integers]:
    """Return the batch plan of an evaluation, and the indices of the samples to evaluate."""
    evaluate, shown = run.scenario.evaluate, len(run.evidence_callbacks)
    plan = plan_of(run, padding)
    del run.evidence_callbacks[shown:]  # What the task makes of these samples trains nothing.
    size = evaluate.micro_batch_size or plan.micro_batch_size
    plan = replace(plan, micro_batch_size=size, gradient_accumulation=1)
    _, held_out = split_samples(len(run.dataset), plan.held_out, plan.seed)
    most = None if evaluate.batches is None else evaluate.batches * plan.global_batch_size
    return plan, held_out[:most]


def without_labels(batch: Batch) -> Batch:
    """Return a copy of a batch whose labels are all ignored by the loss, with all counts 0."""
    import torch

    labels = {name: tensor for name, tensor in batch.inputs.items() if name == "labels"}
    ignored = {name: torch.full_like(tensor, IGNORED_LABEL) for name, tensor in labels.items()}
    none = TokenCounts(processed=0, real=0, supervised=0)
    return replace(batch, inputs={**batch.inputs, **ignored}, sequences=0, tokens=none)


def batches(dataset: TokenDataset, plan: BatchPlan) -> Iterator[Batch]:
    """Yield this rank's micro-batches without end.

    The samples of one step are consecutive in the order of `sample_order`; rank r of w takes every
    w-th of them, beginning with the r-th. All ranks together see the same samples as one process
    with that global batch size. The call raises ScenarioError if the samples do not fill one step.
    """
    return _collated(dataset, plan, steps(dataset, plan))


def _collated(dataset: TokenDataset, plan: BatchPlan, steps: Iterator[Integers]) -> Iterator[Batch]:
    with_mask, first = _may_pad(dataset, plan), 0
    for step in steps:
        rows = [_row(dataset, plan, int(index), place) for place, index in enumerate(step, first)]
        first += len(step)
        supervised = sum(row.supervised for row in rows)
        mine, size = rows[plan.rank :: plan.data_parallel], plan.micro_batch_size
        for start in range(0, len(mine), size):
            yield _collate(dataset, mine[start : start + size], plan, with_mask, supervised)


class _Row(NamedTuple):
    """Sample as a row of the model's inputs."""

    inputs: Any
    labels: Any

    supervised: int
    """Number of the row's labels that enter the loss."""


def _row(dataset: TokenDataset, plan: BatchPlan, index: int, place: int) -> _Row:
    """Return a sample's inputs and labels; `place` is its position in the endless order."""
    tokens = dataset.sample(index)
    if plan.labels_of is None:
        return _Row(tokens, dataset.labels(index), int(dataset.supervised_lengths[index]))
    inputs, labels = plan.labels_of(tokens, place)
    return _Row(inputs, labels, int((labels != IGNORED_LABEL).sum()))


def batch_of(
    dataset: TokenDataset, samples: Integers, plan: BatchPlan, supervised_in_step: int
) -> Batch:
    """Return a micro-batch of the samples with these indices, which the calling plugin chose."""
    rows = [_row(dataset, plan, int(index), place) for place, index in enumerate(samples)]
    plan = replace(plan, micro_batch_size=len(samples))
    return _collate(dataset, rows, plan, _may_pad(dataset, plan), supervised_in_step)


def _may_pad(dataset: TokenDataset, plan: BatchPlan) -> bool:
    # Not batch by batch: a model whose arguments change from step to step is compiled twice. And
    # without a mask attention can take its causal path, which is the faster one.
    shortest, longest = int(dataset.lengths.min()), int(dataset.lengths.max())
    if plan.padding == "max_length":
        return shortest < dataset.sequence_length
    return plan.micro_batch_size > 1 and shortest < longest


def _collate(
    dataset: TokenDataset, rows: Sequence[_Row], plan: BatchPlan, with_mask: bool, supervised: int
) -> Batch:
    """Return a micro-batch of padded rows; `supervised` is the number of labels in the step."""
    import torch

    lengths = np.array([len(row.inputs) for row in rows])
    width = dataset.sequence_length if plan.padding == "max_length" else int(lengths.max())
    ids = np.full((len(rows), width), dataset.pad_token_id, dtype=np.int64)
    labels = np.full((len(rows), width), IGNORED_LABEL, dtype=np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row.inputs)] = row.inputs
        labels[number, : len(row.labels)] = row.labels
    real = np.arange(width) < lengths[:, None]
    arrays: dict[str, Integers] = {"input_ids": ids, "labels": labels}
    if with_mask:
        arrays["attention_mask"] = real.astype(np.int64)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return Batch(
        inputs=pinned(tensors, plan),
        sequences=len(rows),
        tokens=TokenCounts(
            processed=ids.size,
            real=int(lengths.sum()),
            supervised=sum(row.supervised for row in rows),
            real_pairs=int((lengths * lengths).sum()),
            processed_pairs=ids.size * width,
        ),
        supervised_in_step=supervised,
    )


def pinned(tensors: dict[str, Any], plan: BatchPlan) -> dict[str, Any]:
    """Return tensors in page-locked memory if the plan pins them, else unchanged."""
    return {name: each.pin_memory() for name, each in tensors.items()} if plan.pin else tensors

"""Flattened batches: the samples of a micro-batch concatenated in one row, without padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from accel_bench import Batch, Run, TokenCounts
from accel_bench.errors import ScenarioError
from accel_bench_padding_free.sample_distribution import (
    Shares,
    balanced_shares,
    same_shares,
    tokens_of,
)

if TYPE_CHECKING:
    import numpy as np

IGNORED_LABEL = -100
"""Label that torch's cross-entropy ignores."""

NEEDED = ("lengths", "sample", "steps_of")
"""Attributes of a dataset that flattening requires."""

Attention: TypeAlias = Literal["flash", "varlen", "mask", "block-mask"]
"""Attention that separates the sequences of a row: flash-attn's varlen kernel, this plugin's
attention of each sequence alone, a mask over the whole row, or flex attention's block mask."""


@dataclass
class Counts:
    """Counts of flattened batches, on this rank unless noted otherwise."""

    micro_batches: int = 0
    """Number of rows, each of which is a micro-batch."""

    sequences: int = 0
    """Number of samples in the rows."""

    tokens: int = 0
    """Number of tokens in the rows, which have no padding."""

    largest_row: int = 0
    """Number of tokens in the longest row, which determines the peak memory."""

    step_tokens: int = 0
    """Number of tokens in the steps' rows on all ranks."""

    padded_tokens: int = 0
    """Number of tokens in the same steps on all ranks, if each micro-batch of the baseline were
    padded to its longest sample."""

    heaviest_tokens: int = 0
    """Sum over the steps of the number of tokens in the largest micro-batch on any rank."""

    micro_batches_of_all: int = 0
    """Number of micro-batches on all ranks."""

    steps: int = 0
    """Number of optimizer steps that were begun."""

    samples: int = 0
    """Number of samples in the begun steps on all ranks."""


class FlatBatches:
    """Endless iterator over this rank's flattened micro-batches of `run.dataset`.

    `sampler` is the plugin's option `sampler`. A step has the same samples as the baseline's step,
    possibly in other micro-batches, so the loss is equal. Raises ScenarioError for a dataset that
    cannot be flattened.
    """

    def __init__(self, run: Run, sampler: Literal["same", "multipack"], attention: Attention):
        refuse_unflattenable(run)
        train = run.scenario.train
        self.counts = Counts()
        self.constant_length = int(run.dataset.lengths.min()) == int(run.dataset.lengths.max())
        self._steps: Iterator[Any] = run.dataset.steps_of(run)
        self._dataset = run.dataset
        self._rank, self._ranks = run.data_rank, run.data_parallel
        self._accumulation = train.gradient_accumulation
        self._sampler = sampler
        self._attention: Attention = attention
        self._pin = run.device_type.pins_memory
        # A dataset without labels of its own learns every token but the first of each sample.
        self._labels = getattr(run.dataset, "labels", run.dataset.sample)
        self._counted = getattr(run.dataset, "supervised_lengths", run.dataset.lengths - 1)

    def __iter__(self) -> Iterator[Batch]:
        for step in self._steps:
            lengths = [int(length) for length in self._dataset.lengths[step]]
            shares = self._share_out(lengths)
            self._count_step(lengths, shares)
            supervised = sum(self._supervised(index) for index in step)
            for places in shares[self._rank]:
                yield self._flatten(step[places], supervised)

    def evidence(self) -> dict[str, Any]:
        """Return JSON evidence of the flattened batches, and of the padding that they save."""
        counts, longest = self.counts, getattr(self._dataset, "sequence_length", None)
        avoided = 1 - counts.step_tokens / max(counts.padded_tokens, 1)
        fewer = f"{avoided:.0%} fewer tokens than micro-batches padded to their longest"
        if longest is not None and counts.samples:
            of_full = 1 - counts.step_tokens / (counts.samples * longest)
            fewer += f", {of_full:.0%} fewer than rows padded to {longest:,}"
        return {
            "summary": f"{fewer}; attention {self._attention}",
            "sampler": self._sampler,
            "rows": counts.micro_batches,
            "sequences": counts.sequences,
            "tokens": counts.tokens,
            "largest_row_tokens": counts.largest_row,
            "padding_avoided": avoided,
            "largest_by_mean_row": (
                counts.heaviest_tokens
                * counts.micro_batches_of_all
                / max(counts.steps * counts.step_tokens, 1)
            ),
            "constant_length": self.constant_length,
        }

    def _share_out(self, lengths: Sequence[int]) -> Shares:
        if self._sampler == "same":
            return same_shares(len(lengths), self._ranks, self._accumulation)
        return balanced_shares(lengths, self._ranks, self._accumulation)

    def _count_step(self, lengths: Sequence[int], shares: Shares) -> None:
        """Add a step, and its samples, tokens and micro-batches on all ranks, to `counts`.

        `lengths` are the tokens of the step's samples, and `shares` their distribution.
        """
        held = [tokens_of(places, lengths) for share in shares for places in share]
        padded = same_shares(len(lengths), self._ranks, self._accumulation)
        counts = self.counts
        counts.steps += 1
        counts.step_tokens += sum(lengths)
        counts.samples += len(lengths)
        counts.micro_batches_of_all += len(held)
        counts.heaviest_tokens += max(held)
        counts.padded_tokens += sum(
            len(places) * max(lengths[place] for place in places)
            for share in padded
            for places in share
        )

    def _supervised(self, index: int) -> int:
        return int(self._counted[index])

    def _flatten(self, samples: Any, supervised_in_step: int) -> Batch:
        """Return the samples at indices `samples` as a micro-batch of one row; add it to `counts`.

        `supervised_in_step` is the number of labels in the whole step.
        """
        rows = [self._dataset.sample(index) for index in samples]
        lengths = [len(row) for row in rows]
        labels = [self._labels(index) for index in samples]
        tensors = flat_inputs(rows, self._attention, labels)
        total, pairs = sum(lengths), sum(length * length for length in lengths)
        counts = self.counts
        counts.micro_batches += 1
        counts.sequences += len(rows)
        counts.tokens += total
        counts.largest_row = max(counts.largest_row, total)
        return Batch(
            inputs={k: v.pin_memory() for k, v in tensors.items()} if self._pin else tensors,
            sequences=len(rows),
            tokens=TokenCounts(
                processed=total,
                real=total,
                supervised=sum(self._supervised(index) for index in samples),
                real_pairs=pairs,
                processed_pairs=total * total if self._attention == "mask" else pairs,
            ),
            supervised_in_step=supervised_in_step,
        )


def flat_inputs(
    rows: Sequence[np.ndarray[Any, Any]],
    attention: Attention,
    labels: Sequence[np.ndarray[Any, Any]] | None = None,
) -> dict[str, Any]:
    """Return the model's arguments for one row: the token ids of several sequences, on the host.

    `input_ids`, `labels` and `position_ids` have shape (1, tokens). Positions start again with each
    sequence, and its first token is no label. Without `labels` all other tokens are labels.

    If the attention computes each sequence alone, there are two more arguments. `cu_seq_lens_q` has
    the start of each sequence and the end of the last, int32 of shape (sequences + 1,).
    `attention_mask` is one NaN of shape (1, 1, 1, 1). Transformers passes such a mask on unchanged,
    instead of making a mask of tokens x tokens. This plugin's attention ignores it. With any other
    attention the loss is not finite, so sequences cannot silently attend to one another.
    """
    import numpy as np
    import torch

    lengths = [len(row) for row in rows]
    starts = np.cumsum([0, *lengths])
    ids = np.concatenate(rows).astype(np.int64)
    learned = ids.copy() if labels is None else np.concatenate(labels).astype(np.int64)
    learned[starts[:-1]] = IGNORED_LABEL
    arrays = {
        "input_ids": ids[None],
        "labels": learned[None],
        "position_ids": np.concatenate([np.arange(length) for length in lengths])[None],
    }
    if attention in ("flash", "varlen"):
        arrays["cu_seq_lens_q"] = starts.astype(np.int32)
        arrays["attention_mask"] = np.full((1, 1, 1, 1), np.nan, dtype=np.float32)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def refuse_unflattenable(run: Run) -> None:
    """Raise ScenarioError if the dataset lacks an attribute in `NEEDED`."""
    missing = [name for name in NEEDED if not hasattr(run.dataset, name)]
    if missing:
        raise ScenarioError(
            f"padding-free: the data of {run.scenario.data.use!r} cannot be flattened, since its "
            f"dataset has no {', '.join(missing)}; use `synthetic` or `text`, or a dataset with "
            "these (see the plugin's README)"
        )

"""Flatten batches: the samples of a micro-batch one after the other in one row, no padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from accel_bench import Batch, Run, TokenCounts
from accel_bench.errors import ScenarioError
from accel_bench_padding_free.sharing import Shares, balanced_shares, same_shares, tokens_of

if TYPE_CHECKING:
    import numpy as np

IGNORED_LABEL = -100
"""Label that torch's cross-entropy leaves out of the loss."""

NEEDED = ("lengths", "sample", "steps_of")
"""Attributes that a dataset needs to be flattened."""

Attention: TypeAlias = Literal["flash", "varlen", "mask", "block-mask"]
"""Attention that separates the sequences of a row: flash-attn's kernel for any lengths, our own
attention sequence by sequence, a mask over the whole row, or flex attention's mask of blocks."""


@dataclass
class Counts:
    """Counts of what has been flattened so far, on this rank unless noted otherwise."""

    micro_batches: int = 0
    """Rows."""

    sequences: int = 0
    """Samples in them."""

    tokens: int = 0
    """Tokens in them, all of them real."""

    largest_row: int = 0
    """Tokens of the longest row: what decides on the peak of memory."""

    step_tokens: int = 0
    """Tokens of all ranks."""

    padded_tokens: int = 0
    """Tokens, padding included, of the same steps on all ranks if each micro-batch of the baseline
    were padded to its longest sample."""

    heaviest_tokens: int = 0
    """Tokens of the largest micro-batch of each step on any rank, added up."""

    micro_batches_of_all: int = 0
    """Micro-batches of all ranks."""

    steps: int = 0
    """Optimizer steps begun."""


class FlatBatches:
    """Endless iterator over this rank's flattened micro-batches of `run.dataset`.

    A step holds the samples of the baseline's step, whatever shares them out, so its loss is the
    baseline's. Raises ScenarioError for a dataset that cannot be flattened.
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
        """Return JSON of what was flattened, and how much padding that saved."""
        counts = self.counts
        avoided = 1 - counts.step_tokens / max(counts.padded_tokens, 1)
        return {
            "summary": f"{avoided:.0%} of the padded tokens left out; attention {self._attention}",
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
        """Count what the whole step holds, and what it would hold with padding."""
        held = [tokens_of(places, lengths) for share in shares for places in share]
        padded = same_shares(len(lengths), self._ranks, self._accumulation)
        counts = self.counts
        counts.steps += 1
        counts.step_tokens += sum(lengths)
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
        """Make one micro-batch of shape (1, tokens), and count its tokens on the host."""
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
    """Return the model's arguments for one row of several sequences' token ids, on the host.

    `input_ids`, `labels` and `position_ids` have shape (1, tokens); positions start again with each
    sequence, and its first token is no label. Without `labels` all others are. Where attention goes
    by sequences,
    `cu_seq_lens_q` holds where each begins and the last one ends, int32 of shape (sequences + 1,),
    and `attention_mask` is one NaN of shape (1, 1, 1, 1): transformers hands a mask of four
    dimensions on as it is, instead of making one of tokens x tokens and waiting for the device to
    find out whether it must. Our attention does not read it. Any other one would, and then no
    loss is finite, rather than sequences seeing one another.
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
    """Raise ScenarioError for a dataset without samples of its own."""
    missing = [name for name in NEEDED if not hasattr(run.dataset, name)]
    if missing:
        raise ScenarioError(
            f"padding-free: the data of {run.scenario.data.use!r} cannot be flattened, since its "
            f"dataset has no {', '.join(missing)}; use `synthetic` or `text`, or a dataset with "
            "these (see the plugin's README)"
        )

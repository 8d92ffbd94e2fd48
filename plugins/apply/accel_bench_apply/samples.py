"""Conversion of a script's samples into a dataset of token ids and a mask of supervised tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from accel_bench.errors import ScenarioError

if TYPE_CHECKING:
    from accel_bench.modeling.data.token_batches import TokenDataset

Features: TypeAlias = Mapping[str, Any] | Sequence[int]
"""Sample: token ids, or a mapping with `input_ids` and possibly `labels` or masks of tokens."""

MASKS = ("completion_mask", "assistant_masks")
"""Keys of TRL's masks of supervised tokens."""

KNOWN = ("input_ids", "labels", "attention_mask", "length", *MASKS)
"""Keys of a sample that `dataset_of` reads or may ignore."""

IGNORED_LABEL = -100
"""Label that the loss ignores."""


def dataset_of(samples: Iterable[Features], vocab_size: int, longest: int = 0) -> TokenDataset:
    """Return a dataset of the samples' tokens, whose sequence length is at least `longest`.

    Raises ScenarioError if there are no samples, or if a sample has an unknown key, or a label that
    is neither its token nor -100.
    """
    import numpy as np

    from accel_bench.modeling.data.token_batches import TokenDataset

    rows = [_row(sample) for sample in samples]
    if not rows:
        raise ScenarioError("there are no samples to batch")
    lengths = np.array([len(ids) for ids, _ in rows], dtype=np.int64)
    return TokenDataset(
        tokens=np.concatenate([ids for ids, _ in rows]).astype(np.uint32),
        starts=np.concatenate(([0], np.cumsum(lengths)[:-1])),
        lengths=lengths,
        sequence_length=max(longest, int(lengths.max())),
        vocab_size=vocab_size,
        pad_token_id=0,
        fingerprint="",
        more_samples="give more samples",
        supervised=np.concatenate([learned for _, learned in rows]),
    )


def _row(sample: Features) -> tuple[Any, Any]:
    """Return a sample's token ids without padding, and an array that is True for supervised tokens.

    Raises ScenarioError for an unknown key, or a label that is neither its token nor -100.
    """
    import numpy as np

    fields = sample if isinstance(sample, Mapping) else {"input_ids": sample}
    if unknown := [key for key, value in fields.items() if key not in KNOWN and value is not None]:
        raise ScenarioError(
            f"a sample has {', '.join(unknown)}, which the stack's batches do not hold; remove it "
            "(`remove_columns`), or use a stack without batches of its own"
        )
    columns = {key: np.asarray(value) for key, value in fields.items() if value is not None}
    ids = columns["input_ids"]
    learned = np.ones(len(ids), dtype=bool)
    labels = columns.get("labels", ids)
    learned &= labels != IGNORED_LABEL
    if (labels[learned] != ids[learned]).any():
        raise ScenarioError(
            "the labels of a sample are other tokens than its input_ids; the stack's batches take "
            f"each token as its label, or {IGNORED_LABEL} for one that is not learned"
        )
    for mask in MASKS:
        learned &= columns.get(mask, learned).astype(bool)
    real = columns.get("attention_mask", np.ones(len(ids))).astype(bool)
    return ids[real], learned[real]

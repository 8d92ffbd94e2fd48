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

    Raises ScenarioError if there are no samples, if a sample has an unknown key, no list of token
    ids from 0 to `vocab_size`, exclusive, or not as many labels and masks, or if a label is neither
    its token nor -100.
    """
    import numpy as np

    from accel_bench.modeling.data.token_batches import TokenDataset

    if isinstance(samples, Mapping | str):
        raise ScenarioError(
            f"samples are a list with one entry for each sample, and no {type(samples).__name__}: "
            "give lists of token ids, such as `encoding['input_ids']` without padding"
        )
    rows = [_row(sample, f"samples[{number}]") for number, sample in enumerate(samples)]
    if not rows:
        raise ScenarioError("there are no samples to batch")
    lengths = np.array([len(ids) for ids, _ in rows], dtype=np.int64)
    ends, tokens = np.cumsum(lengths), np.concatenate([ids for ids, _ in rows])
    if (outside := np.flatnonzero((tokens < 0) | (tokens >= vocab_size))).size:
        number = np.searchsorted(ends, outside[0], side="right")
        raise ScenarioError(
            f"samples[{number}] has the token id {tokens[outside[0]]}, and the model's are 0 to "
            f"{vocab_size - 1}: use the model's own tokenizer; only `labels` may be -100"
        )
    return TokenDataset(
        tokens=tokens.astype(np.uint32),
        starts=ends - lengths,
        lengths=lengths,
        sequence_length=max(longest, int(lengths.max())),
        vocab_size=vocab_size,
        pad_token_id=0,
        fingerprint="",
        more_samples="give more samples",
        supervised=np.concatenate([learned for _, learned in rows]),
    )


def _row(sample: Features, name: str) -> tuple[Any, Any]:
    """Return a sample's token ids without padding, and an array that is True for supervised tokens.

    `name` is the sample's in errors. Raises ScenarioError as `dataset_of` does.
    """
    import numpy as np

    fields = sample if isinstance(sample, Mapping) else {"input_ids": sample}
    if unknown := [key for key, value in fields.items() if key not in KNOWN and value is not None]:
        raise ScenarioError(
            f"{name} has {', '.join(unknown)}, which the stack's batches do not hold; remove it "
            "(`remove_columns`), or use a stack without batches of its own"
        )
    columns = _columns(fields, name)
    ids = columns["input_ids"]
    learned = np.ones(len(ids), dtype=bool)
    labels = columns.get("labels", ids)
    learned &= labels != IGNORED_LABEL
    if (labels[learned] != ids[learned]).any():
        raise ScenarioError(
            f"the labels of {name} are other tokens than its input_ids; the stack's batches take "
            f"each token as its label, or {IGNORED_LABEL} for one that is not learned"
        )
    for mask in MASKS:
        learned &= columns.get(mask, learned).astype(bool)
    real = columns.get("attention_mask", np.ones(len(ids))).astype(bool)
    if not real.any():
        raise ScenarioError(f"{name} has no tokens: leave it out")
    return ids[real].astype(np.int64), learned[real]


def _columns(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a sample's columns as arrays of shape (tokens,), by key. Raises ScenarioError for
    another shape, and for token ids that are no integers."""
    import numpy as np

    try:
        columns = {k: np.asarray(v) for k, v in fields.items() if v is not None and k != "length"}
    except ValueError as error:  # Rows of different lengths.
        raise ScenarioError(f"{name} is no list of token ids: {error}") from error
    ids = columns.get("input_ids")
    if ids is None or ids.ndim != 1:
        what = "no input_ids" if ids is None else f"input_ids of shape {ids.shape}"
        raise ScenarioError(f"{name} has {what}: give a list of token ids for each sample")
    if ids.size and ids.dtype.kind not in "iu":
        raise ScenarioError(
            f"{name} has token ids of type {ids.dtype}: give integers, as a tokenizer returns them"
        )
    for key, column in columns.items():
        if column.shape != ids.shape:
            raise ScenarioError(
                f"{name} has {key} of shape {column.shape} beside input_ids of shape {ids.shape}: "
                "give one value for each token"
            )
    return columns

"""Token counts of the batches of data loaders."""

from __future__ import annotations

import sys
import weakref
from typing import Any


class Reading:
    """Iteration over a data loader: whether it `stopped`, whether a batch was `trained` on."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = weakref.ref(iterator)
        self.stopped = self.trained = False

    @property
    def ended(self) -> bool:
        """True if no further batch will come: the iterator stopped, or it is gone."""
        return self.stopped or self._iterator() is None


def counts_of(batch: Any, torch: Any) -> tuple[int, int, int] | None:
    """Return the processed, real and supervised tokens of a host batch, or None.

    Tokens are in the batch's tensors `*input_ids`, whose `*attention_mask` marks real tokens, or in
    `tokens` in torchtune. The result is None for a batch without token ids.
    """
    if isinstance(batch, (tuple, list)):
        mappings = [part for part in batch if hasattr(part, "keys")]
        if len(mappings) != 1:
            return None if mappings else counts_of_rows(batch, torch)
        batch = mappings[0]
    if not hasattr(batch, "keys"):
        return counts_of_rows([batch], torch)
    processed = real = 0
    supervised = None
    for key in batch.keys():
        named = str(key).endswith("input_ids") or key == "tokens"
        if not named or not is_tokens(ids := batch[key], torch):
            continue
        mask = batch.get(str(key)[: -len("input_ids")] + "attention_mask")
        processed += ids.numel()
        whole = mask is None or mask.shape != ids.shape
        real += ids.numel() if whole else count_nonzero(mask)
    labels = batch.get("labels")
    if is_tokens(labels, torch):
        supervised = count_labels(labels)
    if not processed:
        return None
    return processed, real, real if supervised is None else min(supervised, real)


def counts_of_rows(parts: Any, torch: Any) -> tuple[int, int, int] | None:
    """Return the counts of a batch of unnamed tensors: token ids, and their labels if any.

    The result is None for other tensors of integers: a second text, a mask, more batches.
    """
    ids, *labels = [part for part in parts if is_tokens(part, torch)] or [None]
    if ids is None or ids is not parts[0] or ids.dim() != 2 or len(labels) > 1:
        return None
    supervised = ids.numel()
    if labels:
        if labels[0].shape != ids.shape or 0 <= labels[0].min() <= labels[0].max() <= 1:
            return None
        supervised = count_nonzero(labels[0] != -100)
    return ids.numel(), ids.numel(), supervised


def is_tokens(value: Any, torch: Any) -> bool:
    """Return whether a value is a host tensor of token ids, with at least two dimensions.

    Tensors of 8-bit integers are taken for images.
    """
    known = isinstance(value, torch.Tensor) and value.is_cpu and value.dim() >= 2
    return known and value.dtype in (torch.int64, torch.int32)


def count_nonzero(tensor: Any) -> int:
    """Return the number of elements that are not 0."""
    numpy = sys.modules.get("numpy")
    return int(tensor.count_nonzero() if numpy is None else numpy.count_nonzero(tensor.numpy()))


def count_labels(labels: Any) -> int:
    """Return the number of labels that a causal model learns from.

    The first label of each row and labels of -100 do not count. For speed, numpy counts if it is
    loaded: it counts all labels other than -100, and then subtracts the first labels.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None or labels.dim() != 2:
        return count_nonzero(labels[..., 1:] != -100)
    array = labels.numpy()
    first = array[:, 0].tolist()
    return int(numpy.count_nonzero(array != -100)) - len(first) + int(first.count(-100))

"""Token counts of the batches of data loaders."""

from __future__ import annotations

import sys
from typing import Any


class Reading:
    """Iteration over a data loader: whether it has `ended`, whether a batch was `trained` on."""

    def __init__(self) -> None:
        self.ended = self.trained = False


def counts_of(batch: Any, torch: Any) -> tuple[int, int, int, int] | None:
    """Return the processed, real and supervised tokens and the sequences of a host batch, or None.

    Tokens are in the batch's tensors `*input_ids`, whose `*attention_mask` marks real tokens, or in
    `tokens` in torchtune. The result is None for a batch without token ids.
    """
    if isinstance(batch, (tuple, list)):
        mappings = [part for part in batch if hasattr(part, "keys")]
        batch = mappings[0] if len(mappings) == 1 else batch[0] if batch and not mappings else None
    if batch is None or not hasattr(batch, "keys"):
        rows = is_tokens(batch, torch) and batch.dim() == 2
        return (batch.numel(),) * 3 + (batch.shape[0],) if rows else None
    processed = real = sequences = 0
    supervised = None
    for key in batch.keys():
        named = str(key).endswith("input_ids") or key == "tokens"
        if not named or not is_tokens(ids := batch[key], torch):
            continue
        mask = batch.get(str(key)[: -len("input_ids")] + "attention_mask")
        processed += ids.numel()
        whole = mask is None or mask.shape != ids.shape
        real += ids.numel() if whole else count_nonzero(mask)
        sequences += ids.shape[0]
    labels = batch.get("labels")
    if is_tokens(labels, torch):
        supervised = count_labels(labels)
    if not processed:
        return None
    return processed, real, real if supervised is None else min(supervised, real), sequences


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

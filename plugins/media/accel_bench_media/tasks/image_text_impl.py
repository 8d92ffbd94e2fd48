"""The contrastive loss of images and their captions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from accel_bench.modeling.losses import repeated_rows


def contrastive_loss(
    model: Any, inputs: Mapping[str, torch.Tensor], supervised_in_step: int
) -> torch.Tensor:
    """Return the sum of the pairs' losses, divided by the number of pairs in the step.

    A pair's loss is the mean of two cross-entropies: of finding the text's image, and the image's
    text. Images with equal captions are not negatives of each other.
    """
    logits = model(**inputs).logits_per_text.float()
    logits = logits.masked_fill(repeated_rows(inputs["input_ids"]), -torch.inf)
    pairs = torch.arange(len(logits), device=logits.device)
    texts = cross_entropy(logits, pairs, reduction="sum")
    images = cross_entropy(logits.t(), pairs, reduction="sum")
    return (texts + images) / (2 * supervised_in_step)

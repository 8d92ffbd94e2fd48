"""Losses that tasks share: sums over what is supervised, divided by that of the whole step."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from accel_bench.task import IGNORED_LABEL

__all__ = ["IGNORED_LABEL", "token_loss"]


def token_loss(logits: torch.Tensor, labels: torch.Tensor, supervised_in_step: int) -> Any:
    """Return the cross-entropies of labelled tokens, summed and divided, in float32.

    `logits` have shape (samples, length, vocabulary), `labels` (samples, length).
    """
    flat = logits.flatten(0, -2).float()
    total = functional.cross_entropy(
        flat, labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
    )
    return total / supervised_in_step

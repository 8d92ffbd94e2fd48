"""Losses shared by tasks: sums over supervised elements, divided by their number in the step."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from accel_bench.engine import IGNORED_LABEL

__all__ = ["IGNORED_LABEL", "labelled_loss", "repeated_rows", "token_loss"]


def token_loss(logits: torch.Tensor, labels: torch.Tensor, supervised_in_step: int) -> Any:
    """Return the sum of supervised tokens' cross-entropies divided by `supervised_in_step`.

    `logits` (samples, length, vocabulary) are cast to float32; `labels` are (samples, length).
    """
    flat = logits.flatten(0, -2).float()
    total = functional.cross_entropy(
        flat, labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
    )
    return total / supervised_in_step


def labelled_loss(model: Any, inputs: Mapping[str, Any], supervised_in_step: int) -> Any:
    """Return the `token_loss` of a model's logits; the model is called without the labels."""
    others = {name: value for name, value in inputs.items() if name != "labels"}
    return token_loss(model(**others).logits, inputs["labels"], supervised_in_step)


def repeated_rows(ids: torch.Tensor) -> torch.Tensor:
    """Return a boolean tensor (rows, rows), true where two different rows have equal ids.

    Rows are compared by a 64-bit hash, so that no tensor of shape (rows, rows, length) is needed.
    """
    multipliers = torch.tensor(_multipliers(ids.shape[1]), device=ids.device)
    hashes = (ids * multipliers).sum(-1)
    equal = hashes[:, None] == hashes
    return equal & ~torch.eye(len(ids), dtype=torch.bool, device=ids.device)


@lru_cache(maxsize=256)
def _multipliers(width: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(0).integers(-(2**63), 2**63, width, dtype=np.int64)

"""Prompts of requests: taken one by one from batches of data, and padded on the left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from accel_bench.engine import Batch


class Prompts:
    """Source of prompts, which are the samples of endless batches without their padding."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._rows = _rows(batches)

    def take(self, count: int) -> list[torch.Tensor]:
        """Return the token ids of the next `count` prompts, each of shape (its length,)."""
        return [next(self._rows) for _ in range(count)]


def _rows(batches: Iterator[Batch]) -> Iterator[torch.Tensor]:
    for batch in batches:
        ids, mask = batch.inputs["input_ids"], batch.inputs.get("attention_mask")
        for number, row in enumerate(ids):
            yield row if mask is None else row[mask[number] != 0]


def left_padded(
    prompts: Sequence[torch.Tensor], width: int, pad_token_id: int, device: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return left-padded prompts' ids and attention mask on the device, shape (prompts, width)."""
    ids = torch.full((len(prompts), width), pad_token_id, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, prompt in enumerate(prompts):
        ids[number, width - len(prompt) :] = prompt
        mask[number, width - len(prompt) :] = 1
    return ids.to(str(device)), mask.to(str(device))

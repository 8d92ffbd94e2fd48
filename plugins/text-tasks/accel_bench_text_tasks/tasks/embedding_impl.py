"""InfoNCE over the pairs of a micro-batch (van den Oord et al., 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from accel_bench.modeling.losses import repeated_rows

if TYPE_CHECKING:
    from accel_bench_text_tasks.tasks.embedding import EmbeddingOptions


class InfoNCE:
    """The loss of rows of inputs of which the first half belongs to the second, in order.

    A pair of which either text equals that of another pair is no negative of it.
    """

    def __init__(self, options: EmbeddingOptions) -> None:
        self._options = options
        self._last: torch.Tensor | None = None

    def __call__(self, model: Any, inputs: Mapping[str, Any], supervised_in_step: int) -> Any:
        """Return the sum over pairs, divided by the pairs of the whole step."""
        hidden = model(**inputs).last_hidden_state
        vectors = functional.normalize(self._pooled(hidden, inputs["attention_mask"]), dim=-1)
        first, second = vectors.chunk(2)
        scores = first @ second.T / self._options.temperature
        firsts, seconds = map(repeated_rows, inputs["input_ids"].chunk(2))
        scores = scores.masked_fill(firsts | seconds, -torch.inf)
        wanted = torch.arange(len(scores), device=scores.device)
        loss = functional.cross_entropy(scores, wanted, reduction="sum")
        if self._options.symmetric:
            loss = (loss + functional.cross_entropy(scores.T, wanted, reduction="sum")) / 2
        if torch.is_grad_enabled():  # An evaluation is no evidence of training.
            self._last = scores.detach()
        return loss / supervised_in_step

    def evidence(self) -> dict[str, Any]:
        """Return JSON of the last micro-batch: how many pairs, and how many were found."""
        if self._last is None:
            return {"pairs": 0}
        found = self._last.argmax(-1) == torch.arange(len(self._last), device=self._last.device)
        share = float(found.float().mean())
        return {
            "pairs": len(self._last),
            "found_in_last_batch": share,
            "left_out_in_last_batch": int(self._last.isneginf().sum()),
        }

    def _pooled(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return a vector of each text, in float32: cosines over a small temperature need it."""
        hidden = hidden.float()
        if self._options.pooling == "first":
            return hidden[:, 0]
        weights = mask[..., None].to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1)

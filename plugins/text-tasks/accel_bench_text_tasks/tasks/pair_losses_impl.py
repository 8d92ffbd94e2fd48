"""Losses of the tasks on text pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from accel_bench.errors import ScenarioError
from accel_bench.modeling.losses import IGNORED_LABEL, repeated_rows, token_loss

if TYPE_CHECKING:
    from accel_bench_text_tasks.tasks.pair_tasks import EmbeddingOptions


class Seq2SeqLoss:
    """Cross-entropy of a decoder's next tokens, whose inputs are the shifted labels."""

    def __init__(self, model: Any) -> None:
        config = model.config
        self._start, self._pad = config.decoder_start_token_id, config.pad_token_id
        if self._start is None or self._pad is None:
            raise ScenarioError(
                "task seq2seq-lm: the model's configuration has no decoder_start_token_id or no "
                "pad_token_id; set them in model.overrides"
            )

    def __call__(self, model: Any, inputs: Mapping[str, Any], supervised_in_step: int) -> Any:
        """Return the loss, a tensor of shape (): the sum over labelled tokens, divided by their
        number in the step."""
        labels = inputs["labels"]
        others = {name: value for name, value in inputs.items() if name != "labels"}
        # With labels the model would compute a loss of its own too.
        output = model(**others, decoder_input_ids=self.shifted(labels))
        return token_loss(output.logits, labels, supervised_in_step)

    def shifted(self, labels: torch.Tensor) -> torch.Tensor:
        """Return the decoder's input ids: the labels shifted right, after the decoder's start
        token."""
        start = labels.new_full((len(labels), 1), self._start)
        ids = torch.cat((start, labels[:, :-1]), dim=1)
        return ids.masked_fill(ids == IGNORED_LABEL, self._pad)

    def evidence(self) -> dict[str, Any]:
        """Return JSON evidence of the decoder's start and padding ids."""
        return {"decoder_start_token_id": self._start, "pad_token_id": self._pad}


class InfoNCE:
    """InfoNCE loss of a batch with all first texts, then all second texts in the same order.

    Pairs that share a text are not used as negatives of each other.
    """

    def __init__(self, options: EmbeddingOptions) -> None:
        self._options = options
        self._last: torch.Tensor | None = None

    def __call__(self, model: Any, inputs: Mapping[str, Any], supervised_in_step: int) -> Any:
        """Return the loss, a tensor of shape (): the sum over pairs, divided by the number of pairs
        in the whole step."""
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
        """Return JSON evidence of the last micro-batch: numbers of pairs and of left-out negatives,
        and the fraction of pairs whose second text has the highest score."""
        if self._last is None:
            return {"pairs": 0}
        matches = self._last.argmax(-1) == torch.arange(len(self._last), device=self._last.device)
        share = float(matches.float().mean())
        return {
            "pairs": len(self._last),
            "found_in_last_batch": share,
            "left_out_in_last_batch": int(self._last.isneginf().sum()),
        }

    def _pooled(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return a float32 vector for each text: 16 bits are too few to divide by the temperature.

        `hidden` has shape (texts, length, features), `mask` marks real tokens.
        """
        hidden = hidden.float()
        if self._options.pooling == "first":
            return hidden[:, 0]
        weights = mask[..., None].to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1)

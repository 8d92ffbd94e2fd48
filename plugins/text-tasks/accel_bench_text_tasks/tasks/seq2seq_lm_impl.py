"""The loss of a decoder that gets each token of its labels when it has to write the next one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from accel_bench.errors import ScenarioError
from accel_bench.modeling.losses import IGNORED_LABEL, token_loss


class Seq2SeqLoss:
    """Shifts labels to the right for the decoder, by the ids of the model's configuration."""

    def __init__(self, model: Any) -> None:
        config = model.config
        self._start, self._pad = config.decoder_start_token_id, config.pad_token_id
        if self._start is None or self._pad is None:
            raise ScenarioError(
                "task seq2seq-lm: the model's configuration has no decoder_start_token_id or no "
                "pad_token_id; set them in model.overrides"
            )

    def __call__(self, model: Any, inputs: Mapping[str, Any], supervised_in_step: int) -> Any:
        """Return the sum over labelled tokens, divided by those of the whole step."""
        labels = inputs["labels"]
        others = {name: value for name, value in inputs.items() if name != "labels"}
        # With labels the model would compute a loss of its own too.
        output = model(**others, decoder_input_ids=self.shifted(labels))
        return token_loss(output.logits, labels, supervised_in_step)

    def shifted(self, labels: torch.Tensor) -> torch.Tensor:
        """Return labels one place to the right behind the token with which a decoder starts."""
        start = labels.new_full((len(labels), 1), self._start)
        ids = torch.cat((start, labels[:, :-1]), dim=1)
        return ids.masked_fill(ids == IGNORED_LABEL, self._pad)

    def evidence(self) -> dict[str, Any]:
        """Return JSON of the ids that the decoder reads beside those of labels."""
        return {"decoder_start_token_id": self._start, "pad_token_id": self._pad}

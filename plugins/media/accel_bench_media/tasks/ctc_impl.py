"""The loss of connectionist temporal classification."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import ctc_loss, log_softmax

from accel_bench.modeling.tensors import is_simulated


class FrozenEncoder:
    """Callback that freezes a model's encoder during its first `micro_batches` of training.

    The encoder's parameters require gradients until the first call, so the optimizer has them.
    """

    def __init__(self, model: Any, micro_batches: int) -> None:
        encoder = getattr(model, model.base_model_prefix)
        self._weights = [weight for weight in encoder.parameters() if weight.requires_grad]
        # Its sizes are simulated as of when all of it trains.
        self._left = 0 if is_simulated() else micro_batches
        self._frozen = False

    def begin_micro_batch(self) -> None:
        """Freeze the encoder in the first micro-batch; unfreeze it after the last frozen one."""
        if not torch.is_grad_enabled():
            return
        if self._frozen != bool(self._left):
            self._frozen = bool(self._left)
            for weight in self._weights:
                weight.requires_grad_(not self._frozen)
        self._left = max(0, self._left - 1)


class CTCLoss:
    """CTC loss of a model's logits, computed outside of the compiled model.

    Before each micro-batch it lets `frozen` freeze or unfreeze the encoder.
    """

    def __init__(self, model: Any, frozen: FrozenEncoder) -> None:
        config = model.config
        self._frozen = frozen
        self._blank = config.pad_token_id
        self._zero_infinity = config.ctc_zero_infinity
        self._convolutions = list(zip(config.conv_kernel, config.conv_stride, strict=True))

    def __call__(
        self, model: Any, inputs: Mapping[str, torch.Tensor], supervised_in_step: int
    ) -> torch.Tensor:
        """Return the sum of the utterances' losses, divided by the characters of the step."""
        self._frozen.begin_micro_batch()
        labels = inputs["labels"]
        features = {name: tensor for name, tensor in inputs.items() if name != "labels"}
        logits = model(**features).logits
        total = ctc_loss(
            log_softmax(logits, dim=-1, dtype=torch.float32).transpose(0, 1),
            labels.clamp(min=0),
            self._frames(inputs),
            (labels >= 0).sum(-1),
            blank=self._blank,
            reduction="sum",
            zero_infinity=self._zero_infinity,
        )
        return total / supervised_in_step

    def _frames(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the number of frames of each utterance, shape (utterances,)."""
        values, mask = inputs["input_values"], inputs.get("attention_mask")
        if mask is None:
            lengths = torch.full(values.shape[:1], values.shape[1], device=values.device)
        else:
            lengths = mask.sum(-1)
        for kernel, stride in self._convolutions:
            lengths = torch.div(lengths - kernel, stride, rounding_mode="floor") + 1
        return lengths

"""Freezing of all parameters outside the last decoder blocks; this module imports torch."""

from __future__ import annotations

from torch import nn

from accel_bench.errors import PluginError
from accel_bench.modeling.blocks import decoder_blocks


class Freezing:
    """Frozen parameters of one model, until `undo` unfreezes them."""

    def __init__(self, model: nn.Module, trainable_blocks: int) -> None:
        """Freeze the model in place, except its last `trainable_blocks` blocks.

        Frozen parameters stay frozen, such as base weights under LoRA. Raises PluginError if the
        model has fewer blocks.
        """
        _, blocks = decoder_blocks(model)
        if len(blocks) < trainable_blocks:
            raise PluginError(
                f"example: {type(model).__name__} has {len(blocks)} blocks, "
                f"fewer than trainable_blocks: {trainable_blocks}"
            )
        kept = {id(p) for block in blocks[-trainable_blocks:] for p in block.parameters()}
        self.model = model
        self.frozen = [p for p in model.parameters() if p.requires_grad and id(p) not in kept]
        for parameter in self.frozen:
            parameter.requires_grad_(False)

    def counts(self) -> dict[str, int]:
        """Return how many parameters this object froze, and how many are trained now."""
        trained = [p for p in self.model.parameters() if p.requires_grad]
        return {
            "frozen_parameters": sum(p.numel() for p in self.frozen),
            "trainable_parameters": sum(p.numel() for p in trained),
        }

    def undo(self) -> None:
        """Unfreeze the parameters that this object froze."""
        for parameter in self.frozen:
            parameter.requires_grad_(True)

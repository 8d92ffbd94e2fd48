"""Freeze all parameters outside of the last decoder blocks. Imports torch, so hooks import it."""

from __future__ import annotations

from torch import nn

from accel_bench.errors import PluginError
from accel_bench.modeling.blocks import decoder_blocks


class Freezing:
    """Parameters frozen in one model, until that is undone."""

    def __init__(self, model: nn.Module, trainable_blocks: int) -> None:
        """Freeze in place. What was frozen before stays so, such as the base weights under LoRA.

        Raises PluginError when the model has fewer blocks than are to be trained.
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
        """Return numbers of weights, not of tensors: those frozen here, and those trained."""
        trained = [p for p in self.model.parameters() if p.requires_grad]
        return {
            "frozen_parameters": sum(p.numel() for p in self.frozen),
            "trainable_parameters": sum(p.numel() for p in trained),
        }

    def undo(self) -> None:
        """Unfreeze what was frozen here, and nothing else."""
        for parameter in self.frozen:
            parameter.requires_grad_(True)

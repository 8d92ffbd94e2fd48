"""Blocks whose activations are computed again."""

import reference
from torch.utils.checkpoint import checkpoint


def step(model, optimizer, batch):
    hidden = model.embedding(batch["words"])
    for block in model.blocks:
        hidden = checkpoint(block, hidden, use_reentrant=False)
    return reference.update(optimizer, reference.loss_of(model.head(hidden), batch["labels"]))

"""Leaves the last block out."""

import reference


def step(model, optimizer, batch):
    hidden = model.blocks[0](model.embedding(batch["words"]))
    return reference.update(optimizer, reference.loss_of(model.head(hidden), batch["labels"]))

"""Leaves one label of the batch out of the loss."""

import reference


def step(model, optimizer, batch):
    labels = batch["labels"].clone()
    labels[0, 0] = -100
    return reference.update(optimizer, reference.loss_of(model(batch["words"]), labels))

"""Is honest for the warm-up, and then leaves the update out."""

import itertools

import reference
import torch

numbers = itertools.count()


def step(model, optimizer, batch):
    if next(numbers) < 3:
        return reference.step(model, optimizer, batch)
    with torch.no_grad():
        return reference.loss_of(model(batch["words"]), batch["labels"])

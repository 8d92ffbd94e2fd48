"""Leaves another block out in each step."""

import itertools

import reference

numbers = itertools.count()


def step(model, optimizer, batch):
    hidden = model.blocks[next(numbers) % 2](model.embedding(batch["words"]))
    return reference.update(optimizer, reference.loss_of(model.head(hidden), batch["labels"]))

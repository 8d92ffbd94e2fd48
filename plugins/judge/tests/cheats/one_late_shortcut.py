"""Leaves the update out in one step alone, late."""

import itertools

import reference

numbers = itertools.count()


def step(model, optimizer, batch):
    if next(numbers) != 5:
        return reference.step(model, optimizer, batch)
    return reference.loss_of(model(batch["words"]), batch["labels"])

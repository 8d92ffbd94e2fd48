"""Accumulates two batches, and applies both in the second step."""

import itertools

import reference

numbers = itertools.count()


def step(model, optimizer, batch):
    loss = reference.loss_of(model(batch["words"]), batch["labels"])
    loss.backward()
    if next(numbers) % 2:
        optimizer.step()
        optimizer.zero_grad()
    return loss

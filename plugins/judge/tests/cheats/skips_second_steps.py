"""Calls the optimizer in every second step alone."""

import itertools

import reference

numbers = itertools.count()


def step(model, optimizer, batch):
    loss = reference.loss_of(model(batch["words"]), batch["labels"])
    optimizer.zero_grad()
    loss.backward()
    if next(numbers) % 2 == 0:
        optimizer.step()
    return loss

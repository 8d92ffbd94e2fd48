"""Trains on the first half of each row."""

import reference


def step(model, optimizer, batch):
    return reference.step(model, optimizer, {name: one[:, :8] for name, one in batch.items()})

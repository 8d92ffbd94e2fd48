"""Leaves one bias of the model as it is."""

import reference


def prepare(model, optimizer):
    model.blocks[0].up.bias.requires_grad_(False)
    return model, optimizer


def step(model, optimizer, batch):
    return reference.step(model, optimizer, batch)

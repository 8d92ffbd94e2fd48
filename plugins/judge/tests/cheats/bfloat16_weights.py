"""Casts the model to bfloat16."""

import reference


def prepare(model, optimizer):
    model.bfloat16()
    return model, reference.make_optimizer(model)


def step(model, optimizer, batch):
    return reference.step(model, optimizer, batch)

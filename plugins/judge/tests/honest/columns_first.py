"""Weights that lie column by column in memory."""

import reference
import torch


def prepare(model, optimizer):
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.data = module.weight.data.t().contiguous().t()
    return model, reference.make_optimizer(model)


def step(model, optimizer, batch):
    return reference.step(model, optimizer, batch)

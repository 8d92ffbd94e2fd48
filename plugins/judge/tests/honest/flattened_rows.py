"""Linear layers on one long row, by addmm."""

from functools import partial

import reference
import torch


def flat(layer, given):
    found = torch.addmm(layer.bias, given.flatten(0, -2), layer.weight.t())
    return found.view(*given.shape[:-1], -1)


def prepare(model, optimizer):
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.forward = partial(flat, module)
    return model, optimizer


def step(model, optimizer, batch):
    return reference.step(model, optimizer, batch)

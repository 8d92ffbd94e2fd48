"""Computes one linear layer of thirteen in bfloat16."""

import reference
import torch


def rounded(layer, given):
    with torch.autocast("cpu", torch.bfloat16):
        return torch.nn.functional.linear(given, layer.weight, layer.bias).float()


def prepare(model, optimizer):
    layer = model.blocks[1].down
    layer.forward = lambda given: rounded(layer, given)
    return model, optimizer


def step(model, optimizer, batch):
    return reference.step(model, optimizer, batch)

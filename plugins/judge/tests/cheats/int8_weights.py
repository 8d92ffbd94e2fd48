"""Quantizes a layer's weight to eight bits in the forward pass."""

import reference
import torch


def prepare(model, optimizer):
    layer = model.blocks[0].up
    layer.forward = lambda given: quantized(layer, given)
    return model, optimizer


def quantized(layer, given):
    scale = layer.weight.detach().abs().max() / 127
    whole = (layer.weight.detach() / scale).round() * scale
    weight = layer.weight + (whole - layer.weight).detach()
    return torch.nn.functional.linear(given, weight, layer.bias)


def step(model, optimizer, batch):
    return reference.step(model, optimizer, batch)

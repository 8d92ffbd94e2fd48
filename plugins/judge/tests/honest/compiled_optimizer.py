"""The optimizer's step through a graph, with a rate that is a tensor."""

import reference
import torch


def prepare(model, optimizer):
    rate = torch.tensor(reference.RATE)
    own = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.1)
    own.step = torch.compile(own.step, backend="eager")
    return model, own


def step(model, optimizer, batch):
    return reference.step(model, optimizer, batch)

"""Takes a rate that is higher by a hundredth."""

import reference
import torch


def prepare(model, optimizer):
    return model, torch.optim.AdamW(model.parameters(), lr=1.01 * reference.RATE, weight_decay=0.1)


def step(model, optimizer, batch):
    return reference.step(model, optimizer, batch)

"""Takes the betas of another recipe."""

import reference
import torch


def prepare(model, optimizer):
    return model, torch.optim.AdamW(
        model.parameters(), lr=reference.RATE, weight_decay=0.1, betas=(0.9, 0.95)
    )


def step(model, optimizer, batch):
    return reference.step(model, optimizer, batch)

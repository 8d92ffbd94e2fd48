"""Keeps eight directions of each gradient."""

import reference
import torch


def step(model, optimizer, batch):
    loss = reference.loss_of(model(batch["words"]), batch["labels"])
    optimizer.zero_grad()
    loss.backward()
    for weight in model.parameters():
        if weight.dim() == 2:
            left, sizes, right = torch.linalg.svd(weight.grad, full_matrices=False)
            weight.grad = left[:, :8] * sizes[:8] @ right[:8]
    optimizer.step()
    return loss

"""Rounds the gradients that flow back to bfloat16."""

import reference
import torch


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, given):
        return given.view_as(given)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.bfloat16().float()


def step(model, optimizer, batch):
    hidden = model.embedding(batch["words"])
    for block in model.blocks:
        hidden = Rounded.apply(block(hidden))
    return reference.update(optimizer, reference.loss_of(model.head(hidden), batch["labels"]))

"""All weights as views of one tensor, which one fused optimizer step updates."""

import reference
import torch


def prepare(model, optimizer):
    weights = [*model.parameters()]
    flat = torch.cat([one.detach().flatten() for one in weights]).requires_grad_()
    for weight, part in zip(weights, flat.split([one.numel() for one in weights]), strict=True):
        weight.data = part.detach().view_as(weight)
    own = torch.optim.AdamW([flat], lr=reference.RATE, weight_decay=0.1, fused=True)
    return (model, flat), own


def step(prepared, optimizer, batch):
    model, flat = prepared
    loss = reference.loss_of(model(batch["words"]), batch["labels"])
    gradients = torch.autograd.grad(loss, [*model.parameters()])
    flat.grad = torch.cat([one.flatten() for one in gradients])
    optimizer.step()
    return loss

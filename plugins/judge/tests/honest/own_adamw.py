"""AdamW by hand, in place."""

import reference
import torch


def prepare(model, optimizer):
    weights = list(model.parameters())
    moments = [(torch.zeros_like(one), torch.zeros_like(one)) for one in weights]
    return model, {"weights": weights, "moments": moments, "steps": 0}


@torch.no_grad()
def apply(state):
    state["steps"] += 1
    first, second = 1 - 0.9 ** state["steps"], 1 - 0.999 ** state["steps"]
    for weight, (mean, square) in zip(state["weights"], state["moments"], strict=True):
        mean.lerp_(weight.grad, 0.1)
        square.mul_(0.999).addcmul_(weight.grad, weight.grad, value=0.001)
        weight.mul_(1 - 0.1 * reference.RATE)
        scale = (square / second).sqrt_().add_(1e-8)
        weight.addcdiv_(mean, scale, value=-reference.RATE / first)
        weight.grad = None


def step(model, state, batch):
    loss = reference.loss_of(model(batch["words"]), batch["labels"])
    loss.backward()
    apply(state)
    return loss

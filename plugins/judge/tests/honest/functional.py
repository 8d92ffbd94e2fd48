"""The gradient of a function of the weights."""

import reference
from torch.func import functional_call, grad_and_value


def prepare(model, optimizer):
    def loss_of(weights, batch):
        logits = functional_call(model, weights, (batch["words"],))
        return reference.loss_of(logits, batch["labels"])

    return (model, grad_and_value(loss_of)), optimizer


def step(prepared, optimizer, batch):
    model, gradient_of = prepared
    weights = dict(model.named_parameters())
    gradients, loss = gradient_of({k: v.detach() for k, v in weights.items()}, batch)
    for name, weight in weights.items():
        weight.grad = gradients[name]
    optimizer.step()
    return loss

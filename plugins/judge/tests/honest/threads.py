"""Two threads, each with half of the rows."""

from concurrent.futures import ThreadPoolExecutor

import reference
import torch

pool = ThreadPoolExecutor(2)


def gradients_of(model, words, labels):
    loss = reference.loss_of(model(words), labels) / 2
    return loss.detach(), torch.autograd.grad(loss, [*model.parameters()])


def step(model, optimizer, batch):
    halves = zip(batch["words"].split(2), batch["labels"].split(2), strict=True)
    (one, first), (other, second) = pool.map(lambda half: gradients_of(model, *half), halves)
    for weight, a, b in zip(model.parameters(), first, second, strict=True):
        weight.grad = a + b
    optimizer.step()
    return one + other

"""An adapter that starts at zero, and counts its numbers: the count changes by far more."""

import torch
from torch import nn


class Counting(nn.Linear):
    def __init__(self):
        super().__init__(20, 4)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, given):
        self.seen += given.numel()
        return super().forward(given)


def make_model():
    return Counting()


def make_batch(generator):
    return {"given": torch.randn(16, 20, generator=generator)}


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=1e-7)


def loss_of(model, batch):
    return (model(batch["given"]) - batch["given"][:, :4].flip(-1)).square().mean()


def step(model, optimizer, batch):
    loss = loss_of(model, batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss

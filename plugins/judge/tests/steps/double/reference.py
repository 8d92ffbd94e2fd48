"""A small network in float64."""

import torch
from torch import nn


def make_model():
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16)).double()


def make_batch(generator):
    return {"given": torch.randn(32, 16, generator=generator, dtype=torch.float64)}


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(model, given):
    return (model(given) - given.flip(-1)).square().mean()


def step(model, optimizer, batch):
    loss = loss_of(model, batch["given"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss

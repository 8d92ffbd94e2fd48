"""A small convolutional network with batch normalization."""

import torch
from torch import nn
from torch.nn import functional


def make_model():
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )


def make_batch(generator):
    images = torch.randn(8, 3, 32, 32, generator=generator)
    return {"images": images, "labels": torch.randint(10, (8,), generator=generator)}


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)


def step(model, optimizer, batch):
    loss = functional.cross_entropy(model(batch["images"]), batch["labels"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss

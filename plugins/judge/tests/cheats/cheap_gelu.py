"""Takes the approximation of GELU by tanh."""

import reference
from torch.nn.functional import gelu


def prepare(model, optimizer):
    reference.functional.gelu = lambda given: gelu(given, approximate="tanh")
    return model, optimizer


def step(model, optimizer, batch):
    return reference.step(model, optimizer, batch)

"""A module that steps with an optimizer."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

LEARNING_RATE = 1e-2
"""As large as the weights spread: in a smaller step an error would be lost beside them."""


class AdamWStep(nn.Module):
    """Matrices, and torch's AdamW over them; its state is made in the first step."""

    def __init__(self, sizes: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.empty(size)) for size in sizes])
        self.optimizer: Any = torch.optim.AdamW(self.weights, lr=LEARNING_RATE)

    def forward(self, *gradients: torch.Tensor) -> list[torch.Tensor]:
        """Take a step, and return the matrices."""
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.grad = gradient
        self.optimizer.step()
        return [weight.detach() for weight in self.weights]


def in_float64(module: Any) -> Any:
    """Return a copy whose matrices and moments are in float64; steps are counted in float32."""
    found = copy.deepcopy(module).double()
    for state in found.optimizer.state.values():
        state.update({key: one.double() for key, one in state.items() if key != "step"})
    return found

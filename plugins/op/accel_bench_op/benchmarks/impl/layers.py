"""Layers of language models in plain torch, named as in transformers, and an AdamW step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

EPSILON = 1e-5
"""Epsilon added to the variance in norms."""

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "silu": nn.SiLU,
    "gelu": lambda: nn.GELU(approximate="tanh"),
}
"""Activations of gated MLPs, by name."""

LEARNING_RATE = 1e-2
"""Learning rate, as large as the weights' spread, so that errors of a step are visible."""


def at_least_float32(given: torch.dtype) -> torch.dtype:
    """Return float64 for float64, else float32, to compute in; Thunder lacks torch's function."""
    return torch.float64 if given == torch.float64 else torch.float32


class RMSNorm(nn.Module):
    """RMS norm in torch operations, computed at least in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.variance_epsilon = EPSILON

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return hidden states normalized over the last dimension, times the weight."""
        given = hidden_states.dtype
        wide = hidden_states.to(at_least_float32(given))
        mean = wide.pow(2).mean(-1, keepdim=True)
        return self.weight * (wide * torch.rsqrt(mean + self.variance_epsilon)).to(given)


class GatedMLP(nn.Module):
    """Gated MLP without biases: SwiGLU with silu, GeGLU with gelu."""

    def __init__(self, hidden: int, intermediate: int, activation: str) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)
        self.act_fn = ACTIVATIONS[activation]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output for inputs of shape (..., hidden)."""
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class GPT2MLP(nn.Module):
    """MLP of GPT-2: two projections with biases, with a gelu in between."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(hidden, intermediate)
        self.c_proj = nn.Linear(intermediate, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output for inputs of shape (..., hidden)."""
        return self.c_proj(functional.gelu(self.c_fc(x), approximate="tanh"))


class LinearCrossEntropy(nn.Module):
    """Output projection and cross-entropy loss; the logits of all tokens are stored."""

    def __init__(self, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, hidden_states: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of hidden states (tokens, hidden) and labels (tokens,)."""
        return cross_entropy(self.head(hidden_states), target)


def cross_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of logits (tokens, vocabulary), computed at least in float32."""
    wide = logits.to(at_least_float32(logits.dtype))
    return functional.cross_entropy(wide, target)


def rotary(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return queries `q` and keys `k` of shape (batch, heads, tokens, head), rotated by angles.

    `cos` and `sin` are the cosines and sines of the angles, of shape (1, tokens, head).
    """
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + _turned(q) * sin, k * cos + _turned(k) * sin


def angles(length: int, head: int, base: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines (1, tokens, head) of rotary embedding in torch's default dtype.

    `length` is the number of tokens, and `head` the width of a head. `base` is the base of the
    angles' frequencies, in models' configurations often `rope_theta`.
    """
    steps = torch.arange(0, head, 2, dtype=torch.float64) / head
    turns = torch.outer(torch.arange(length, dtype=torch.float64), base**-steps)
    both = torch.cat((turns, turns), -1).unsqueeze(0)
    return both.cos().to(torch.get_default_dtype()), both.sin().to(torch.get_default_dtype())


def _turned(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


class AdamWStep(nn.Module):
    """Module of matrices and their AdamW optimizer, whose state the first step creates."""

    def __init__(self, sizes: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.empty(size)) for size in sizes])
        self.optimizer: Any = torch.optim.AdamW(self.weights, lr=LEARNING_RATE)

    def forward(self, *gradients: torch.Tensor) -> list[torch.Tensor]:
        """Take one optimizer step with these gradients of the matrices, and return the matrices."""
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.grad = gradient
        self.optimizer.step()
        return [weight.detach() for weight in self.weights]


def stepping_in_float64(module: Any) -> Any:
    """Return a copy of an AdamWStep with float64 matrices and moments, and a float32 step count."""
    doubled = copy.deepcopy(module).double()
    for state in doubled.optimizer.state.values():
        state.update({key: value.double() for key, value in state.items() if key != "step"})
    return doubled

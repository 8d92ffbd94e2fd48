"""An optimizer that steps while the backward pass runs: each gradient is used and freed at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer


class InBackward(Optimizer):
    """One small optimizer for each parameter, called as soon as its gradient is whole.

    `step` and `zero_grad`, which engines call, find nothing left to do. The state is that of the
    small ones; the learning rate, which is constant, is written where schedules look for it.
    """

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        make: Callable[[Sequence[torch.nn.Parameter]], Optimizer],
    ) -> None:
        parts = {parameter: make([parameter]) for parameter in parameters}
        super().__init__(parameters, next(iter(parts.values())).defaults)
        self.parts = parts
        """The small optimizers."""

        self.most_gradient_bytes = 0
        """Most bytes of gradients that were alive at once in the first step."""

        self._watching = True
        for part in self.parts.values():
            part.state = self.state
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._use) for parameter in parameters
        ]

    def step(self, closure: Any = None) -> None:
        """Do nothing: all gradients of the step have been used."""
        self._watching = False

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: gradients are freed as they are used."""

    def remove(self) -> None:
        """Step no more."""
        for handle in self._handles:
            handle.remove()

    def _use(self, parameter: torch.Tensor) -> None:
        """Update a parameter with its gradient, and let that go."""
        if self._watching:
            self.most_gradient_bytes = max(self.most_gradient_bytes, self._gradient_bytes())
        self.parts[parameter].step()
        parameter.grad = None

    def _gradient_bytes(self) -> int:
        gradients = (parameter.grad for parameter in self.parts)
        return sum(g.numel() * g.element_size() for g in gradients if g is not None)

"""An optimizer that steps while the backward pass runs: each gradient is used and freed at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer


class OptimizerInBackward(Optimizer):
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
        self.most_gradient_bytes = 0
        """Most bytes of gradients that were alive at once in the first step."""

        self._watching = True
        for part in parts.values():
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
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()

    def _use(self, parameter: torch.Tensor) -> None:
        if self._watching:
            alive = sum(p.grad.nbytes for p in self.parts if p.grad is not None)
            self.most_gradient_bytes = max(self.most_gradient_bytes, alive)
        self.parts[parameter].step()
        parameter.grad = None

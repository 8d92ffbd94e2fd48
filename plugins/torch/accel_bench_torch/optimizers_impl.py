"""Torch's optimizers, which may run in the backward pass, with evidence of their kernels."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from accel_bench.errors import InvalidRunError
from accel_bench.modeling.tensors import dtype_name


def build(
    name: str,
    parameters: Iterable[torch.nn.Parameter],
    learning_rate: float,
    options: dict[str, Any],
) -> torch.optim.Optimizer:
    """Return the optimizer `name` of torch.optim over the parameters that require a gradient.

    `options` has further arguments of the optimizer, and the switch `optimizer_in_backward`. Raises
    InvalidRunError if no parameter requires a gradient.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained:
        raise InvalidRunError(["no parameter requires a gradient"])
    arguments = dict(options)
    in_backward = arguments.pop("optimizer_in_backward", False)
    make = functools.partial(getattr(torch.optim, name), lr=learning_rate, **arguments)
    return OptimizerInBackward(trained, make) if in_backward else make(trained)


class OptimizerInBackward(Optimizer):
    """Optimizer that updates each parameter in the backward pass, once its gradient is complete.

    `make` returns an optimizer of a list of parameters. It is called for each parameter alone, and
    all these optimizers share one state. `step` and `zero_grad`, which engines call, do nothing.
    The constant learning rate is in `param_groups`, where learning-rate schedules look.
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
        """Peak bytes of gradients that existed at once in the first step."""

        self._watching = True
        for part in parts.values():
            part.state = self.state
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._use) for parameter in parameters
        ]

    def step(self, closure: Any = None) -> None:
        """Do nothing: the parameters have already been updated."""
        self._watching = False

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: each gradient is freed as soon as it is used."""

    def remove(self) -> None:
        """Remove the hooks from the parameters."""
        for handle in self._handles:
            handle.remove()

    def _use(self, parameter: torch.Tensor) -> None:
        if self._watching:
            alive = sum(p.grad.nbytes for p in self.parts if p.grad is not None)
            self.most_gradient_bytes = max(self.most_gradient_bytes, alive)
        self.parts[parameter].step()
        parameter.grad = None


class FirstStep(TorchDispatchMode):
    """Recorder of the torch operations that an optimizer calls in its first step.

    After that step it removes its hooks from the optimizer.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.ended = False
        self._names: set[str] = set()
        self._context = contextlib.ExitStack()
        part = _parts(optimizer)[0]
        self._handles: list[Any] = [
            part.register_step_pre_hook(self._begin),
            part.register_step_post_hook(self._end),
        ]

    @property
    def kernels(self) -> list[str]:
        """Names of the recorded torch operations that update many elements or tensors at once."""
        return sorted(name for name in self._names if name.startswith(("_fused_", "_foreach_")))

    def remove(self) -> None:
        """Remove the hooks from the optimizer; stop a recording that has not ended."""
        self._context.close()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))

    def _begin(self, *_: Any) -> None:
        self._context.enter_context(self)

    def _end(self, *_: Any) -> None:
        self.remove()
        self.ended = True


def optimizer_evidence(optimizer: torch.optim.Optimizer, first: FirstStep) -> dict[str, Any]:
    """Return JSON evidence: the optimizer's class, kernels in its first step, and state dtypes.

    `first` is the optimizer's recorder. Before the first step has ended, the kernels are unknown.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    part = _parts(optimizer)[0]
    fused = foreach = None
    if first.ended:
        # The fused one counts its steps with lists, too.
        fused = any(name.startswith("_fused_") for name in first.kernels)
        foreach = bool(first.kernels) and not fused
    facts = {
        "class": type(part).__name__,
        "fused": fused,
        "foreach": foreach,
        "kernels": first.kernels,
        "tensors": len(parameters),
        "parameters": sum(parameter.numel() for parameter in parameters),
        # All parts share one state, which an engine may have taken from the outer one.
        "state_dtypes": _state_dtypes(part),
    }
    if isinstance(optimizer, OptimizerInBackward):
        facts["optimizer_in_backward"] = True
        facts["gradient_bytes"] = sum(parameter.nbytes for parameter in parameters)
        facts["most_gradient_bytes"] = optimizer.most_gradient_bytes
    return facts


def _parts(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """Return the optimizers that take steps: `optimizer` itself, or one for each parameter."""
    return (
        list(optimizer.parts.values())
        if isinstance(optimizer, OptimizerInBackward)
        else [optimizer]
    )


def _state_dtypes(optimizer: torch.optim.Optimizer) -> list[str]:
    tensors = (value for state in optimizer.state.values() for value in state.values())
    dtypes = {t.dtype for t in tensors if isinstance(t, torch.Tensor) and t.numel() > 1}
    return sorted(map(dtype_name, dtypes))

"""Building of torch's optimizers, and reading back which implementation they use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from accel_bench.builtin.optimizers.in_backward_impl import InBackward
from accel_bench.errors import InvalidRunError
from accel_bench.modeling.tensors import dtype_name


def build(
    name: str,
    parameters: Iterable[torch.nn.Parameter],
    learning_rate: float,
    options: dict[str, Any],
) -> torch.optim.Optimizer:
    """Build torch.optim's optimizer of that name over the parameters that require a gradient.

    `options` are its further arguments, and `optimizer_in_backward`. Raises InvalidRunError when
    nothing requires a gradient.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained:
        raise InvalidRunError(["no parameter requires a gradient"])
    arguments = {key: value for key, value in options.items() if key != "optimizer_in_backward"}

    def make(these: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = getattr(torch.optim, name)(
            these, lr=learning_rate, **arguments
        )
        return made

    return InBackward(trained, make) if options.get("optimizer_in_backward") else make(trained)


class FirstStep:
    """Sees which kernels the first step of an optimizer really calls, and goes away."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.seen: set[str] | None = None
        """Names of the operations; None before the first step."""

        part = _parts(optimizer)[0]
        self._mode = _Operations()
        self._context = contextlib.ExitStack()
        self._handles: list[Any] = [
            part.register_step_pre_hook(self._begin),
            part.register_step_post_hook(self._end),
        ]

    @property
    def kernels(self) -> list[str]:
        """The operations that update many elements or tensors at once, by torch's names."""
        found = self.seen or set()
        return sorted(name for name in found if name.startswith(("_fused_", "_foreach_")))

    def remove(self) -> None:
        """Take the hooks away, and leave the first step where that has not ended."""
        self._context.close()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _begin(self, *_: Any) -> None:
        self._context.enter_context(self._mode)

    def _end(self, *_: Any) -> None:
        self.remove()
        self.seen = self._mode.names


class _Operations(TorchDispatchMode):
    """Collects the names of the operations that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def optimizer_evidence(optimizer: torch.optim.Optimizer, first: FirstStep) -> dict[str, Any]:
    """Evidence: class, implementation as its first step showed it, and what it updates.

    Without a step, the implementation is that which was asked for, or which torch would choose.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    part = _parts(optimizer)[0]
    fused, foreach = _implementation(part.param_groups[0], parameters)
    if first.seen is not None:
        # The fused one counts its steps with lists, too.
        fused = any(name.startswith("_fused_") for name in first.kernels)
        foreach = bool(first.kernels) and not fused
    return {
        "class": type(part).__name__,
        "fused": fused,
        "foreach": foreach,
        "kernels": first.kernels,
        "tensors": len(parameters),
        "parameters": sum(parameter.numel() for parameter in parameters),
        # All parts share one state, which an engine may have taken from the outer one.
        "state_dtypes": _state_dtypes(part),
        **_in_backward(optimizer, parameters),
    }


def _parts(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """The optimizers that really step: one for each parameter where they do so in the backward."""
    return list(optimizer.parts.values()) if isinstance(optimizer, InBackward) else [optimizer]


def _in_backward(
    optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter]
) -> dict[str, Any]:
    """How much of the gradients was alive at once, against all of them."""
    if not isinstance(optimizer, InBackward):
        return {}
    return {
        "optimizer_in_backward": True,
        "gradient_bytes": sum(p.numel() * p.element_size() for p in parameters),
        "most_gradient_bytes": optimizer.most_gradient_bytes,
    }


def _implementation(
    group: dict[str, Any], parameters: list[torch.nn.Parameter]
) -> tuple[bool | None, bool | None]:
    """Fused and foreach: as asked, else as torch chooses; null where it does not tell."""
    fused, foreach = group.get("fused"), group.get("foreach")
    if fused is not None or foreach is not None:
        return bool(fused), bool(foreach)
    choose = getattr(torch_optimizer, "_default_to_fused_or_foreach", None)
    if choose is None:
        return None, None
    return tuple(choose(parameters, differentiable=False, use_fused=False))


def _state_dtypes(optimizer: torch.optim.Optimizer) -> list[str]:
    """Dtypes of the state that has a parameter's size, which is what costs memory."""
    tensors = (value for state in optimizer.state.values() for value in state.values())
    found = {t.dtype for t in tensors if isinstance(t, torch.Tensor) and t.numel() > 1}
    return sorted(map(dtype_name, found))

"""Building of torch's optimizers, and reading back which implementation they use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from accel_bench.errors import InvalidRunError


def build(
    name: str,
    parameters: Iterable[torch.nn.Parameter],
    learning_rate: float,
    options: dict[str, Any],
) -> torch.optim.Optimizer:
    """Build torch.optim's optimizer of that name over the parameters that require a gradient.

    `options` are its further arguments. Raises InvalidRunError when nothing requires a gradient.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained:
        raise InvalidRunError(["no parameter requires a gradient"])
    optimizer: torch.optim.Optimizer = getattr(torch.optim, name)(
        trained, lr=learning_rate, **options
    )
    return optimizer


def describe(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Evidence: class, implementation as realised, number and dtypes of the tensors it updates."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    fused, foreach = _implementation(optimizer.param_groups[0], parameters)
    return {
        "class": type(optimizer).__name__,
        "fused": fused,
        "foreach": foreach,
        "tensors": len(parameters),
        "parameters": sum(parameter.numel() for parameter in parameters),
        "state_dtypes": _state_dtypes(optimizer),
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
    return sorted(str(dtype).removeprefix("torch.") for dtype in found)

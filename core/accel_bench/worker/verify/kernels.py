"""Read what computes matmuls and attention: linear layers, experts, and sdpa's backends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from accel_bench.modeling.blocks import adapter_modules

SDPA_FLAGS = {
    "flash": "flash_sdp_enabled",
    "efficient": "mem_efficient_sdp_enabled",
    "cudnn": "cudnn_sdp_enabled",
    "math": "math_sdp_enabled",
}
"""Kernels of `scaled_dot_product_attention`, and functions of torch.backends.cuda that query them.
"""


def read_linear_kernels(model: torch.nn.Module) -> dict[str, int]:
    """Count linear layers by their class, and by that of their weight where it is no plain one.

    `{"Linear[Int8Tensor]": 28, "Linear": 1}`. A quantized layer is known by what linear layers
    have, sizes in and out, so libraries need not be. Adapters' own matrices are left out.
    """
    adapters = adapter_modules(model)
    counts = Counter(
        _kind(module)
        for module in model.modules()
        if _is_linear(module) and id(module) not in adapters
    )
    return dict(counts.most_common())


def plain_linears(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield linear layers whose weights are floating-point numbers, adapters left out."""
    adapters = adapter_modules(model)
    for module in model.modules():
        weight = getattr(module, "weight", None)
        plain = isinstance(weight, torch.Tensor) and weight.is_floating_point()
        if plain and _is_linear(module) and id(module) not in adapters and _is_plain(weight):
            yield module


def read_experts(model: torch.nn.Module) -> str | None:
    """Return how experts multiply, such as `grouped_mm`, joined by commas; None for no experts."""
    found = {name for module in model.modules() if (name := experts_implementation(module))}
    return ", ".join(sorted(found)) or None


def experts_implementation(module: torch.nn.Module) -> str | None:
    """Return how transformers multiplies a module's experts; None where it does not choose.

    It marks experts whose products it chooses with how their weights lie. `replaced` means that
    another forward was put there, which ignores the choice.
    """
    if not all(hasattr(module, mark) for mark in ("has_gate", "is_transposed")):
        return None
    if "forward" in vars(module):
        return "replaced"
    return getattr(getattr(module, "config", None), "_experts_implementation", None)


def enabled_attention_backends() -> list[str]:
    """Return what `scaled_dot_product_attention` may choose, by priority where torch has one."""
    flags: Any = torch.backends.cuda
    priority = getattr(torch._C, "_get_sdp_priority_order", lambda: ())()
    known = sorted(SDPA_FLAGS, key=lambda name: _place(name, list(map(int, priority))))
    return [name for name in known if getattr(flags, SDPA_FLAGS[name], lambda: False)()]


def _place(name: str, priority: list[int]) -> int:
    number = int(getattr(SDPBackend, f"{name.upper()}_ATTENTION", SDPBackend.MATH))
    return priority.index(number) if number in priority else len(priority)


def _is_linear(module: torch.nn.Module) -> bool:
    """Return whether it computes a matmul itself: it has sizes and wraps no other linear."""
    sizes = (getattr(module, "in_features", None), getattr(module, "out_features", None))
    known = all(isinstance(size, int) for size in sizes) or type(module).__name__ == "Conv1D"
    return known and not hasattr(module, "adapter_layer_names")


def _kind(module: torch.nn.Module) -> str:
    weight, name = getattr(module, "weight", None), type(module).__name__
    return name if _is_plain(weight) else f"{name}[{type(weight).__name__}]"


def _is_plain(weight: Any) -> bool:
    return type(weight).__name__ in ("NoneType", "Parameter", "Tensor", "DTensor")

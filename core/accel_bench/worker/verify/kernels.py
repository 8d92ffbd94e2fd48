"""Readings of a model's kernels: of linear layers, experts, and torch's attention backends."""

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
"""Kernels of `scaled_dot_product_attention`, with the torch.backends.cuda functions that query
them."""


def read_linear_kernels(model: torch.nn.Module) -> dict[str, int]:
    """Return the number of linear layers by class, with the class of their weight if not plain.

    `{"Linear[Int8Tensor]": 28, "Linear": 1}` is an example. A quantized layer is recognized by its
    attributes for input and output size, without its library. Adapters' own matrices are left out.
    """
    adapters = adapter_modules(model)
    counts = Counter(
        _kind(module)
        for module in model.modules()
        if _is_linear(module) and id(module) not in adapters
    )
    return dict(counts.most_common())


def plain_linears(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield linear layers with floating-point weights, without adapters."""
    adapters = adapter_modules(model)
    for module in model.modules():
        weight = getattr(module, "weight", None)
        plain = isinstance(weight, torch.Tensor) and weight.is_floating_point()
        if plain and _is_linear(module) and id(module) not in adapters and _is_plain(weight):
            yield module


def read_experts(model: torch.nn.Module) -> str | None:
    """Return the experts' kernels, such as `grouped_mm`, joined by commas; None without experts."""
    names = {name for module in model.modules() if (name := experts_implementation(module))}
    return ", ".join(sorted(names)) or None


def experts_implementation(module: torch.nn.Module) -> str | None:
    """Return the kernel chosen in transformers for a module's experts; None for other modules.

    Transformers marks such experts with the layout of their weights. `replaced` means that another
    forward was substituted, which ignores the choice.
    """
    if not all(hasattr(module, mark) for mark in ("has_gate", "is_transposed")):
        return None
    if "forward" in vars(module):
        return "replaced"
    return getattr(getattr(module, "config", None), "_experts_implementation", None)


def enabled_attention_backends() -> list[str]:
    """Return the enabled kernels of `scaled_dot_product_attention`, by torch's priority."""
    flags: Any = torch.backends.cuda
    priority = getattr(torch._C, "_get_sdp_priority_order", lambda: ())()
    known = sorted(SDPA_FLAGS, key=lambda name: _place(name, list(map(int, priority))))
    return [name for name in known if getattr(flags, SDPA_FLAGS[name], lambda: False)()]


def _place(name: str, priority: list[int]) -> int:
    number = int(getattr(SDPBackend, f"{name.upper()}_ATTENTION", SDPBackend.MATH))
    return priority.index(number) if number in priority else len(priority)


def _is_linear(module: torch.nn.Module) -> bool:
    """Return whether a module computes a matmul: it has two sizes and is no adapter's wrapper."""
    sizes = (getattr(module, "in_features", None), getattr(module, "out_features", None))
    known = all(isinstance(size, int) for size in sizes) or type(module).__name__ == "Conv1D"
    return known and not hasattr(module, "adapter_layer_names")


def _kind(module: torch.nn.Module) -> str:
    weight, name = getattr(module, "weight", None), type(module).__name__
    return name if _is_plain(weight) else f"{name}[{type(weight).__name__}]"


def _is_plain(weight: Any) -> bool:
    return type(weight).__name__ in ("NoneType", "Parameter", "Tensor", "DTensor")

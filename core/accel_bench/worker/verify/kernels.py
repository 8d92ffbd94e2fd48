"""Reading of a model's kernels: of linear layers, of experts, and of torch's attention."""

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
    """Return the number of linear layers by class name, with the weight's class if it is not plain.

    An example is `{"Linear[Int8Tensor]": 28, "Linear": 1}`. A quantized layer is recognized by its
    attributes for input and output size, without its library. Matrices of adapters are left out.
    """
    adapters = adapter_modules(model)
    counts = Counter(
        _kind(module)
        for module in model.modules()
        if _is_linear(module) and id(module) not in adapters
    )
    return dict(counts.most_common())


def plain_linears(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield the linear layers whose weights are plain floating-point tensors, without adapters."""
    adapters = adapter_modules(model)
    for module in model.modules():
        weight = getattr(module, "weight", None)
        plain = isinstance(weight, torch.Tensor) and weight.is_floating_point()
        if plain and _is_linear(module) and id(module) not in adapters and _is_plain(weight):
            yield module


def read_experts(model: torch.nn.Module) -> str | None:
    """Return names of the kernels of experts, such as `grouped_mm`, joined by commas; or None."""
    names = {name for module in model.modules() if (name := experts_implementation(module))}
    return ", ".join(sorted(names)) or None


def experts_implementation(module: torch.nn.Module) -> str | None:
    """Return the name of the kernel that transformers uses for a module of experts, else None.

    Such a module has attributes for the layout of its weights. `replaced` means that its forward
    was replaced by another, which ignores the choice of a kernel.
    """
    if not all(hasattr(module, mark) for mark in ("has_gate", "is_transposed")):
        return None
    if "forward" in vars(module):
        return "replaced"
    return getattr(getattr(module, "config", None), "_experts_implementation", None)


def enabled_attention_backends() -> list[str]:
    """Return the names of the enabled attention kernels of torch, the preferred one first."""
    flags: Any = torch.backends.cuda
    priority = getattr(torch._C, "_get_sdp_priority_order", lambda: ())()
    known = sorted(SDPA_FLAGS, key=lambda name: _place(name, list(map(int, priority))))
    return [name for name in known if getattr(flags, SDPA_FLAGS[name], lambda: False)()]


def _place(name: str, priority: list[int]) -> int:
    number = int(getattr(SDPBackend, f"{name.upper()}_ATTENTION", SDPBackend.MATH))
    return priority.index(number) if number in priority else len(priority)


def _is_linear(module: torch.nn.Module) -> bool:
    """Return whether a module is a linear layer: it has two sizes and is no adapter's wrapper."""
    sizes = (getattr(module, "in_features", None), getattr(module, "out_features", None))
    known = all(isinstance(size, int) for size in sizes) or type(module).__name__ == "Conv1D"
    return known and not hasattr(module, "adapter_layer_names")


def _kind(module: torch.nn.Module) -> str:
    weight, name = getattr(module, "weight", None), type(module).__name__
    return name if _is_plain(weight) else f"{name}[{type(weight).__name__}]"


def _is_plain(weight: Any) -> bool:
    return type(weight).__name__ in ("NoneType", "Parameter", "Tensor", "DTensor")

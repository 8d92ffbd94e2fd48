"""What computes matmuls and attention: classes of linear layers, and sdpa's enabled backends."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch


def read_linear_kernels(model: torch.nn.Module) -> dict[str, int]:
    """Count linear layers by their class, and by that of their weight where it is no plain one.

    `{"Linear[Int8Tensor]": 28, "Linear": 1}`. A quantized layer is known by what linear layers
    have, sizes in and out, so libraries need not be. Adapters' own matrices are left out.
    """
    adapters = {
        id(part)
        for module in model.modules()
        for name in getattr(module, "adapter_layer_names", ())
        for part in _parts(module, name)
    }
    counts = Counter(
        _kind(module)
        for module in model.modules()
        if _is_linear(module) and id(module) not in adapters
    )
    return dict(counts.most_common())


def enabled_attention_backends() -> list[str]:
    """Backends among which `scaled_dot_product_attention` may choose on a GPU."""
    known = {
        "flash": "flash_sdp_enabled",
        "memory_efficient": "mem_efficient_sdp_enabled",
        "cudnn": "cudnn_sdp_enabled",
        "math": "math_sdp_enabled",
    }
    flags: Any = torch.backends.cuda
    return [name for name, flag in known.items() if getattr(flags, flag, lambda: False)()]


def _parts(module: torch.nn.Module, name: str) -> list[torch.nn.Module]:
    """Modules below an attribute that may hold tensors alone."""
    held = getattr(module, name, None)
    return list(held.modules()) if isinstance(held, torch.nn.Module) else []


def _is_linear(module: torch.nn.Module) -> bool:
    """Whether it computes a matmul itself: it has sizes and is no adapter around such a layer."""
    sizes = (getattr(module, "in_features", None), getattr(module, "out_features", None))
    known = all(isinstance(size, int) for size in sizes) or type(module).__name__ == "Conv1D"
    return known and not hasattr(module, "adapter_layer_names")


def _kind(module: torch.nn.Module) -> str:
    """`Linear`, or `Linear[Int8Tensor]` where the weight is a tensor of its own kind."""
    weight = type(getattr(module, "weight", None)).__name__
    plain = weight in ("NoneType", "Parameter", "Tensor", "DTensor")
    name = type(module).__name__
    return name if plain else f"{name}[{weight}]"

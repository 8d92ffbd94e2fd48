"""Set sdpa's kernels for the process, and read those of one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from accel_bench import Run
from accel_bench.modeling.attention_kernels import attention_kernels

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}

TOKENS = 64
"""Length of the call that is read."""


class Backends:
    """The kernels that are enabled, from the moment they are set until that is undone."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._context = sdpa_kernel([KERNELS[name] for name in names], set_priority=True)
        self._context.__enter__()

    def evidence(self, run: Run) -> dict[str, Any]:
        """Return JSON of what is enabled, and of what a causal call with the model's heads used."""
        return {"backends": list(self._names), "kernel_of_one_call": _kernels_of_one_call(run)}

    def undo(self) -> None:
        """Leave torch's own context, which puts back what was before."""
        self._context.__exit__(None, None, None)


def _kernels_of_one_call(run: Run) -> list[str] | None:
    """Return the names of the kernels; None where the model's heads are not known."""
    config = getattr(run.unwrapped_model, "config", None)
    text = config.get_text_config() if config is not None else None
    heads, hidden = (getattr(text, key, None) for key in ("num_attention_heads", "hidden_size"))
    if not heads or not hidden:
        return None
    size = getattr(text, "head_dim", None) or hidden // heads
    groups = getattr(text, "num_key_value_heads", None) or heads
    dtype = run.scenario.compute_dtype

    def zeros(count: int) -> torch.Tensor:
        shape, place = (1, count, TOKENS, size), str(run.device)
        return torch.zeros(shape, device=place, dtype=getattr(torch, dtype), requires_grad=True)

    with torch.enable_grad():
        output = torch.nn.functional.scaled_dot_product_attention(
            zeros(heads), zeros(groups), zeros(groups), is_causal=True, enable_gqa=groups != heads
        )
    return sorted(attention_kernels(output))

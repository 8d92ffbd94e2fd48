"""Liger's Triton kernels in the form of a model's functions and forward methods."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
from liger_kernel.ops import (
    LigerCrossEntropyFunction,
    LigerFusedGateUpSiLUMulFunction,
    LigerFusedLinearCrossEntropyFunction,
    LigerGELUMulFunction,
    LigerRMSNormFunction,
    LigerRopeFunction,
    LigerSiLUMulFunction,
)
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

NAMES = {
    "rms_norm": "LigerRMSNormFunction",
    "rope": "LigerRopeFunction",
    "silu": "LigerSiLUMulFunction",
    "gelu_tanh": "LigerGELUMulFunction",
    "gate": "LigerFusedGateUpSiLUMulFunction",
    "cross_entropy": "LigerCrossEntropyFunction",
    "linear_cross_entropy": "LigerFusedLinearCrossEntropyFunction",
}
"""Names of Liger's kernels in evidence."""

NO_MORE_OUTPUTS = (False, False, False, None, None)
"""Positional arguments of Liger's function before `chunk_mem_const`, with Liger's defaults: no
scaling by token, no accuracy or predictions, automatic implementation."""


@cache
def norm_forward(offset: float, in_float32: bool, shared_gradient: bool) -> Callable[..., Any]:
    """Return a `forward` method of RMS norms; equal arguments give the same function.

    `offset` is added to the weights. If `in_float32`, the weights multiply float32 values, before
    rounding. The backward overwrites the incoming gradient unless `shared_gradient` is true.
    """
    casting = "gemma" if in_float32 else "llama"

    def rms_norm(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        if not in_float32:
            # Liger answers in the dtype of the input, the model's own norm in the wider one.
            hidden_states = hidden_states.to(torch.promote_types(hidden_states.dtype, weight.dtype))
        epsilon = self.eps if hasattr(self, "eps") else self.variance_epsilon
        return LigerRMSNormFunction.apply(
            hidden_states, weight, epsilon, offset, casting, not shared_gradient
        )

    return rms_norm


def rotary(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that rotates queries and keys like the modeling module's function
    `original`.

    It calls `original` for unsupported inputs.
    """

    @wraps(original)
    def apply_rotary_pos_emb(
        q: torch.Tensor,
        k: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        unsqueeze_dim: int = 1,
    ) -> Any:
        if unsqueeze_dim != 1 or q.dim() != 4 or cos.dim() != 3 or cos.shape[-1] != q.shape[-1]:
            return original(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)
        if not torch.compiler.is_compiling() and is_in_torch_dispatch_mode():
            # The kernel writes over what it rotates. Selective checkpointing, a dispatch mode, has
            # kept just that, and would hand it out again rotated, to be rotated once more.
            q, k = q.clone(), k.clone()
        return LigerRopeFunction.apply(q, k, cos, sin)

    return apply_rotary_pos_emb


def silu_mlp(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Return the output of a SwiGLU MLP `self` for hidden states `x`; its projections may be
    adapted or quantized."""
    return self.down_proj(LigerSiLUMulFunction.apply(self.gate_proj(x), self.up_proj(x)))


def gelu_tanh_mlp(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Return the output of a GeGLU MLP `self`, with the tanh approximation, for hidden states
    `x`."""
    return self.down_proj(LigerGELUMulFunction.apply(self.gate_proj(x), self.up_proj(x)))


MLPS = {"silu": silu_mlp, "gelu_tanh": gelu_tanh_mlp}
"""Functions for the forward of gated MLPs, by the activation's name."""


def silu_gate(self: Any, gate_up_out: torch.Tensor) -> torch.Tensor:
    """Return the output of experts' `_apply_gate`, silu(gate) x up. `gate_up_out` has gate and up
    side by side, of shape (tokens, 2 x inner)."""
    return LigerFusedGateUpSiLUMulFunction.apply(gate_up_out)


def cross_entropy(
    logits: torch.Tensor, target: torch.Tensor, *, ignore_index: int, reduction: str
) -> torch.Tensor:
    """Return cross-entropy in float32, as `mean` or `sum` by `reduction`; its gradient overwrites
    the float32 logits.

    Shapes: logits (tokens, vocabulary), target (tokens,). Targets equal to `ignore_index` are left
    out.
    """
    return LigerCrossEntropyFunction.apply(
        logits.float(), target, None, ignore_index, 0.0, 0.0, reduction
    )[0]


def linear_cross_entropy(  # noqa: PLR0913 - the arguments of cross-entropy
    hidden: torch.Tensor,
    head: Any,
    target: torch.Tensor,
    *,
    ignore_index: int,
    reduction: str,
    softcap: float | None,
    chunk_mem_const: int = 1,
) -> torch.Tensor:
    """Return cross-entropy of `head(hidden)`, computed chunk by chunk, in float32.

    Shapes: hidden (tokens, hidden size), target (tokens,). `head` has `weight` and `bias`.
    `softcap` bounds logits by tanh, if given. A trained projection's gradient is accumulated over
    chunks in float32, as in a single product. The logits of a chunk have at most `chunk_mem_const`
    times as many elements as `hidden`.
    """
    if not hidden.requires_grad:
        # Else Liger computes no gradient at all, that of a projection that trains included.
        hidden = hidden.detach().requires_grad_(head.weight.requires_grad)
    accumulated = torch.float32 if head.weight.requires_grad else None
    return LigerFusedLinearCrossEntropyFunction.apply(
        hidden,
        head.weight,
        target,
        head.bias,
        None,
        ignore_index,
        0.0,
        0.0,
        reduction,
        softcap,
        False,
        accumulated,
        *NO_MORE_OUTPUTS,
        chunk_mem_const,
    )[0]

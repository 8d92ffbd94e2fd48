"""Torch's own fused kernels: the RMS norm, and the loss without stored logits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.nn import functional

NAMES = {
    "rms_norm": "torch.nn.functional.rms_norm",
    "linear_cross_entropy": "torch.nn.functional.linear_cross_entropy",
}
"""Names of torch's kernels in evidence."""


@cache
def norm_forward(offset: float, in_float32: bool, shared_gradient: bool) -> Callable[..., Any]:
    """Return a `forward` method of RMS norms; equal arguments give the same function.

    `offset` is added to the weights. If `in_float32`, the weights multiply float32 values, before
    rounding. `shared_gradient` has no effect here.
    """

    def rms_norm(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        given = hidden_states.dtype
        weight = self.weight
        computed = torch.promote_types(given, torch.float32 if in_float32 else weight.dtype)
        weight = weight.to(computed)
        epsilon = self.eps if hasattr(self, "eps") else self.variance_epsilon
        normed = functional.rms_norm(
            hidden_states.to(computed),
            weight.shape,
            weight + offset if offset else weight,
            epsilon,
        )
        # Autocast may answer in another dtype than the model's own norm.
        return normed.to(given if in_float32 else computed)

    return rms_norm


def linear_cross_entropy(  # noqa: PLR0913 - the arguments of cross-entropy
    hidden: torch.Tensor,
    head: Any,
    target: torch.Tensor,
    *,
    ignore_index: int,
    reduction: str,
    softcap: float | None,
) -> torch.Tensor:
    """Return cross-entropy of `head(hidden)`, computed chunk by chunk, in float32.

    Shapes: hidden (tokens, hidden size), target (tokens,). `head` has `weight` and `bias`. Raises
    ValueError for a `softcap`. Torch returns the loss in the dtype of its inputs. 16-bit losses of
    single tokens are therefore summed in float32. This keeps 5 digits of the sum over thousands of
    tokens, and a 16-bit sum keeps only 2. The cost is that the backward recomputes the logits.
    """
    if softcap is not None:
        raise ValueError("torch's kernel does not bound logits")
    precise = torch.finfo(hidden.dtype).bits >= 32
    # What torch sets itself while compiling, but with a warning, at which the graph would break.
    options = torch.nn.LinearCrossEntropyOptions(allow_retain_graph=torch.compiler.is_compiling())
    loss = functional.linear_cross_entropy(
        hidden,
        head.weight,
        target,
        linear_bias=head.bias,
        reduction=reduction if precise else "none",
        ignore_index=ignore_index,
        options=options,
    )
    if precise:
        return loss
    total = loss.float().sum()
    return total if reduction == "sum" else total / (target != ignore_index).sum()

"""Norms over the last dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accel_bench_op.benchmarks import impl
from accel_bench_op.benchmarks.parts import PartBenchmark, Traffic
from accel_bench_op.benchmarks.shapes import GPT2_SIZES, LLAMA_SIZES


class _Norm(PartBenchmark):
    """Norm of hidden states of shape (batch, tokens, hidden)."""

    vectors = 1
    """Weights, and biases, of the norm."""

    def traffic(self) -> Traffic:
        """Return hidden states, the weight, and a bias that no gradient depends on."""
        hidden = self.shape.tokens * self.shape.hidden
        bias = (self.vectors - 1) * self.shape.hidden
        return Traffic(inputs=hidden, outputs=hidden, weights=self.shape.hidden, once=bias)


class RMSNorm(_Norm):
    """RMS norm in operations of torch, as Llama computes it."""

    name = "rms_norm"
    description = "RMS norm with a weight, computed in float32 as Llama does."
    operation = "rms_norm"
    sizes = LLAMA_SIZES

    def fn(self) -> Callable[..., Any]:
        """Return a module with `weight` and `variance_epsilon`."""
        return self.module(impl.layers.RMSNorm, self.shape.hidden)


class LayerNorm(_Norm):
    """Torch's layer norm."""

    name = "layer_norm"
    description = "Layer norm with a weight and a bias, as GPT-2 has it."
    operation = "layer_norm"
    sizes = GPT2_SIZES
    vectors = 2

    def fn(self) -> Callable[..., Any]:
        """Return torch's module."""
        from torch import nn

        return self.module(nn.LayerNorm, self.shape.hidden)

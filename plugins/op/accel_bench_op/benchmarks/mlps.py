"""MLPs: gated ones, and GPT-2's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accel_bench_op.benchmarks import impl
from accel_bench_op.benchmarks.parts import PartBenchmark, Traffic
from accel_bench_op.benchmarks.shapes import GPT2_SIZES, LLAMA_SIZES


class _MLP(PartBenchmark):
    """MLP of hidden states of shape (batch, tokens, hidden)."""

    matrices = 3
    """Matrices of hidden x intermediate elements."""

    def flops(self) -> int | None:
        """Return those of the products."""
        return 2 * self.shape.tokens * self.matrices * self.shape.hidden * self.shape.intermediate

    def traffic(self) -> Traffic:
        """Return hidden states and weights; the bias at the output is no part of a gradient."""
        hidden = self.shape.tokens * self.shape.hidden
        inner, outer = self.biases
        weights = self.matrices * self.shape.hidden * self.shape.intermediate + inner
        return Traffic(inputs=hidden, outputs=hidden, weights=weights, once=outer)

    @property
    def biases(self) -> tuple[int, int]:
        """Elements of the biases inside, and of the one at the output."""
        return 0, 0


class LlamaMLP(_MLP):
    """SwiGLU."""

    name = "llama_mlp"
    description = "SwiGLU MLP: down(silu(gate(x)) * up(x))."
    operation = "swiglu_mlp"
    sizes = LLAMA_SIZES

    def fn(self) -> Callable[..., Any]:
        """Return a module with `gate_proj`, `up_proj`, `down_proj` and `act_fn`."""
        from torch import nn

        return self.module(
            impl.layers.GatedMLP, self.shape.hidden, self.shape.intermediate, nn.SiLU()
        )


class GemmaMLP(_MLP):
    """GeGLU; Gemma's own sizes are not in the catalog."""

    name = "gemma_mlp"
    description = "GeGLU MLP: down(gelu(gate(x)) * up(x)), gelu by its tanh approximation."
    operation = "geglu_mlp"
    sizes = LLAMA_SIZES

    def fn(self) -> Callable[..., Any]:
        """Return a module with `gate_proj`, `up_proj`, `down_proj` and `act_fn`."""
        from torch import nn

        act_fn = nn.GELU(approximate="tanh")
        return self.module(impl.layers.GatedMLP, self.shape.hidden, self.shape.intermediate, act_fn)


class GPT2MLP(_MLP):
    """GPT-2's, with biases and without a gate."""

    name = "gpt2_mlp"
    description = "MLP of GPT-2: two projections with biases, gelu in between."
    operation = "gelu_mlp"
    sizes = GPT2_SIZES
    matrices = 2

    @property
    def biases(self) -> tuple[int, int]:
        """Elements of the biases inside, and of the one at the output."""
        return self.shape.intermediate, self.shape.hidden

    def fn(self) -> Callable[..., Any]:
        """Return a module with `c_fc` and `c_proj`."""
        return self.module(impl.layers.GPT2MLP, self.shape.hidden, self.shape.intermediate)

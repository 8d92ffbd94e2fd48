"""Benchmarks of single operations: norms, MLPs, embeddings, losses, and an optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from accel_bench_op.benchmark import as_dtype
from accel_bench_op.benchmarks import impl
from accel_bench_op.benchmarks.part_benchmark import PartBenchmark
from accel_bench_op.benchmarks.shapes import GPT2_SIZES, LLAMA_SIZES, MIXED_SIZES

TOKEN_BYTES = 8
"""Bytes of a token id."""


class RMSNormBenchmark(PartBenchmark):
    """RMS norm with a weight, computed in float32 as Llama does."""

    name = "rms_norm"
    operation = "rms_norm"
    sizes = LLAMA_SIZES

    def fn(self) -> Callable[..., Any]:
        """Return a module with `weight` and `variance_epsilon`."""
        return self.module(impl.layers.RMSNorm, self.shape.hidden)


class LayerNormBenchmark(PartBenchmark):
    """Layer norm with a weight and a bias, as GPT-2 has it."""

    name = "layer_norm"
    operation = "layer_norm"
    sizes = GPT2_SIZES
    unread = ("bias",)

    def fn(self) -> Callable[..., Any]:
        """Return torch's `LayerNorm`."""
        from torch import nn

        return self.module(nn.LayerNorm, self.shape.hidden)


class _MLPBenchmark(PartBenchmark):
    """Base class of benchmarks of an MLP on hidden states of shape (batch, tokens, hidden)."""

    activation = "silu"
    """Name of the activation in `impl.layers.ACTIVATIONS`."""

    def fn(self) -> Callable[..., Any]:
        """Return a module with `gate_proj`, `up_proj`, `down_proj` and `act_fn`."""
        widths = self.shape.hidden, self.shape.intermediate
        return self.module(impl.layers.GatedMLP, *widths, self.activation)

    def flops(self) -> int | None:
        """Return the forward FLOPs of the matrix products."""
        weights = self.shape.mlp_matrices * self.shape.hidden * self.shape.intermediate
        return 2 * self.shape.tokens * weights


class LlamaMLPBenchmark(_MLPBenchmark):
    """SwiGLU MLP: down(silu(gate(x)) * up(x))."""

    name = "llama_mlp"
    operation = "swiglu_mlp"
    sizes = LLAMA_SIZES


class GemmaMLPBenchmark(_MLPBenchmark):
    """GeGLU MLP: down(gelu(gate(x)) * up(x)), gelu by its tanh approximation."""

    name = "gemma_mlp"
    operation = "geglu_mlp"
    sizes = LLAMA_SIZES
    activation = "gelu"


class GPT2MLPBenchmark(_MLPBenchmark):
    """MLP of GPT-2: two projections with biases, gelu in between."""

    name = "gpt2_mlp"
    operation = "gelu_mlp"
    sizes = GPT2_SIZES
    unread = ("c_proj.bias",)

    def fn(self) -> Callable[..., Any]:
        """Return a module with `c_fc` and `c_proj`."""
        return self.module(impl.layers.GPT2MLP, self.shape.hidden, self.shape.intermediate)


class EmbeddingBenchmark(PartBenchmark):
    """Embedding of tokens; the backward makes the gradient of the whole table."""

    name = "embedding"
    operation = "embedding"
    sizes = MIXED_SIZES
    unread = ("weight",)

    def make_batch(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return random token ids of shape (batch, tokens)."""
        return (self.indices(self.shape.vocabulary, self.shape.batch, self.shape.length),), {}

    def fn(self) -> Callable[..., Any]:
        """Return torch's `Embedding`."""
        from torch import nn

        return self.module(nn.Embedding, self.shape.vocabulary, self.shape.hidden)

    def bytes_moved(self) -> int | None:
        """Return the bytes of the ids read, and of the vectors read and written."""
        vectors = self.shape.hidden * as_dtype(self.dtype).itemsize
        return self.shape.tokens * (TOKEN_BYTES + 2 * vectors)


class RotaryEmbeddingBenchmark(PartBenchmark):
    """Rotary embedding of queries and keys."""

    name = "rotary_embedding"
    operation = "rotary"
    keeps_inputs = False
    unread = ("input 0", "input 1")
    sizes = LLAMA_SIZES

    def make_batch(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return queries and keys, and cosines and sines.

        Queries and keys have the memory layout in which projections return them.
        """
        shape = self.shape
        query, key = (
            # Heads beside one another in memory: a view of what a projection makes.
            self.activations(shape.batch, shape.length, heads, shape.head, seed=seed)
            .detach()
            .transpose(1, 2)
            .requires_grad_(self.requires_grad)
            for seed, heads in enumerate((shape.heads, shape.key_heads))
        )
        return (query, key, *self.turns()), {}

    def fn(self) -> Callable[..., Any]:
        """Return a function `(q, k, cos, sin)` that returns rotated queries and keys."""
        return impl.layers.rotary

    def postprocess_for_backward(self, out: Any) -> Any:
        """Return rotated queries and keys as one tensor, so that both get a gradient."""
        import torch

        return torch.cat([output.flatten() for output in out])


class CrossEntropyBenchmark(PartBenchmark):
    """Cross-entropy of logits of all tokens, computed in float32."""

    name = "cross_entropy"
    operation = "cross_entropy"
    keeps_inputs = False
    sizes = MIXED_SIZES

    def make_batch(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return logits (tokens, vocabulary) and labels (tokens,)."""
        tokens, vocabulary = self.shape.tokens, self.shape.vocabulary
        return (self.activations(tokens, vocabulary), self.indices(vocabulary, tokens)), {}

    def fn(self) -> Callable[..., Any]:
        """Return a loss function of logits and labels."""
        return impl.layers.cross_entropy


class LinearCrossEntropyBenchmark(PartBenchmark):
    """Output projection and cross-entropy; kernels that fuse them store no logits."""

    name = "linear_cross_entropy"
    operation = "fused_linear_cross_entropy"
    sizes = MIXED_SIZES

    def make_batch(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return hidden states (tokens, hidden) and labels (tokens,)."""
        tokens = self.shape.tokens
        labels = self.indices(self.shape.vocabulary, tokens)
        return (self.activations(tokens, self.shape.hidden), labels), {}

    def fn(self) -> Callable[..., Any]:
        """Return a module with `head`, a linear layer without a bias."""
        return self.module(impl.layers.LinearCrossEntropy, self.shape.hidden, self.shape.vocabulary)

    def flops(self) -> int | None:
        """Return the forward FLOPs of the output projection."""
        return 2 * self.shape.tokens * self.shape.hidden * self.shape.vocabulary


class AdamWBenchmark(PartBenchmark):
    """One step of torch's AdamW over the matrices of a block."""

    name = "adamw_step"
    operation = "adamw_step"
    sizes = MIXED_SIZES
    requires_grad = False

    def make_batch(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return a random gradient for each matrix."""
        sizes = enumerate(self.shape.block_matrices)
        return tuple(self.activations(*size, seed=seed) for seed, size in sizes), {}

    def fn(self) -> Callable[..., Any]:
        """Return a module that holds the matrices; a call with gradients takes one step."""
        return self.module(impl.layers.AdamWStep, self.shape.block_matrices)

    def reference(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return a float64 copy of the module `fn` and of its optimizer's state."""
        return impl.layers.stepping_in_float64(fn)

    def bytes_moved(self) -> int | None:
        """Return the bytes of gradients read, and of weights and two moments read and written."""
        elements = sum(rows * columns for rows, columns in self.shape.block_matrices)
        return 7 * elements * as_dtype(self.dtype).itemsize

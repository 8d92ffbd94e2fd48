"""Operations on their own: norms, MLPs, embeddings, losses, and the step of an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from accel_bench_op.benchmarks import impl
from accel_bench_op.benchmarks.parts import INDEX_BYTES, PartBenchmark, Traffic
from accel_bench_op.benchmarks.shapes import GPT2_SIZES, LLAMA_SIZES, MIXED_SIZES


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


class _MLP(PartBenchmark):
    """MLP of hidden states of shape (batch, tokens, hidden)."""

    matrices = 3
    """Matrices of hidden x intermediate elements."""

    activation = "silu"
    """What gates, of `impl.layers.ACTIVATIONS`."""

    has_biases = False
    """True if both projections add a bias."""

    def fn(self) -> Callable[..., Any]:
        """Return a module with `gate_proj`, `up_proj`, `down_proj` and `act_fn`."""
        widths = self.shape.hidden, self.shape.intermediate
        return self.module(impl.layers.GatedMLP, *widths, self.activation)

    def flops(self) -> int | None:
        """Return those of the products."""
        return 2 * self.shape.tokens * self.matrices * self.shape.hidden * self.shape.intermediate

    def traffic(self) -> Traffic:
        """Return hidden states and weights; the bias at the output is no part of a gradient."""
        hidden = self.shape.tokens * self.shape.hidden
        inner, outer = (self.shape.intermediate, self.shape.hidden) if self.has_biases else (0, 0)
        weights = self.matrices * self.shape.hidden * self.shape.intermediate + inner
        return Traffic(inputs=hidden, outputs=hidden, weights=weights, once=outer)


class LlamaMLP(_MLP):
    """SwiGLU."""

    name = "llama_mlp"
    description = "SwiGLU MLP: down(silu(gate(x)) * up(x))."
    operation = "swiglu_mlp"
    sizes = LLAMA_SIZES


class GemmaMLP(_MLP):
    """GeGLU; Gemma's own sizes are not in the catalog."""

    name = "gemma_mlp"
    description = "GeGLU MLP: down(gelu(gate(x)) * up(x)), gelu by its tanh approximation."
    operation = "geglu_mlp"
    sizes = LLAMA_SIZES
    activation = "gelu"


class GPT2MLP(_MLP):
    """GPT-2's, with biases and without a gate."""

    name = "gpt2_mlp"
    description = "MLP of GPT-2: two projections with biases, gelu in between."
    operation = "gelu_mlp"
    sizes = GPT2_SIZES
    matrices = 2
    has_biases = True

    def fn(self) -> Callable[..., Any]:
        """Return a module with `c_fc` and `c_proj`."""
        return self.module(impl.layers.GPT2MLP, self.shape.hidden, self.shape.intermediate)


class Embedding(PartBenchmark):
    """Look-up of tokens' vectors; the backward adds gradients into a table."""

    name = "embedding"
    description = "Embedding of tokens; the backward makes the gradient of the whole table."
    operation = "embedding"
    sizes = MIXED_SIZES

    def make_batch(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return tokens of shape (batch, tokens)."""
        return (self.indices(self.shape.vocabulary, self.shape.batch, self.shape.length),), {}

    def fn(self) -> Callable[..., Any]:
        """Return torch's module."""
        from torch import nn

        return self.module(nn.Embedding, self.shape.vocabulary, self.shape.hidden)

    def bytes_moved(self) -> int | None:
        """Return those of the tokens, and of their vectors, read and written."""
        elements = 2 * self.shape.tokens * self.shape.hidden
        return self.moved(elements, indices=self.shape.tokens)

    def backward_bytes_moved(self) -> int | None:
        """Return those of the tokens, of their gradients, and of the table's, which is dense."""
        table = self.shape.vocabulary * self.shape.hidden
        gradients = self.shape.tokens * self.shape.hidden
        return self.moved(gradients, table, indices=self.shape.tokens)


class RotaryEmbedding(PartBenchmark):
    """Rotation of queries and keys by their positions."""

    name = "rotary_embedding"
    description = "Rotary embedding of queries and keys."
    operation = "rotary"
    keeps_inputs = False
    sizes = LLAMA_SIZES

    def make_batch(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return queries and keys as projections leave them, cosines and sines."""
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
        """Return a function `(q, k, cos, sin)` of the rotated queries and keys."""
        return impl.layers.rotary

    def postprocess_for_backward(self, out: Any) -> Any:
        """Return both outputs as one tensor, so that queries and keys get a gradient."""
        import torch

        return torch.cat([one.flatten() for one in out])

    def traffic(self) -> Traffic:
        """Return queries and keys, or their gradients, read and written, and the angles."""
        heads = self.shape.heads + self.shape.key_heads
        rotated = 2 * self.shape.tokens * heads * self.shape.head
        return Traffic(once=rotated + 2 * self.shape.length * self.shape.head)


class CrossEntropy(PartBenchmark):
    """Mean loss of logits."""

    name = "cross_entropy"
    description = "Cross-entropy of logits of all tokens, computed in float32."
    operation = "cross_entropy"
    keeps_inputs = False
    sizes = MIXED_SIZES

    def make_batch(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return logits (tokens, vocabulary) and labels (tokens,)."""
        tokens, vocabulary = self.shape.tokens, self.shape.vocabulary
        return (self.activations(tokens, vocabulary), self.indices(vocabulary, tokens)), {}

    def fn(self) -> Callable[..., Any]:
        """Return a function of logits and labels."""
        return impl.layers.cross_entropy

    def traffic(self) -> Traffic:
        """Return logits and labels; the loss is one number."""
        logits = self.shape.tokens * self.shape.vocabulary
        return Traffic(inputs=logits, other_bytes=self.shape.tokens * INDEX_BYTES)


class LinearCrossEntropy(PartBenchmark):
    """Mean loss of hidden states, with the projection to logits."""

    name = "linear_cross_entropy"
    description = "Output projection and cross-entropy; kernels that fuse them store no logits."
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
        """Return those of the projection."""
        return 2 * self.shape.tokens * self.shape.hidden * self.shape.vocabulary

    def traffic(self) -> Traffic:
        """Return hidden states, labels and weights; logits need not be stored."""
        return Traffic(
            inputs=self.shape.tokens * self.shape.hidden,
            weights=self.shape.hidden * self.shape.vocabulary,
            other_bytes=self.shape.tokens * INDEX_BYTES,
        )


class AdamWStep(PartBenchmark):
    """Torch's AdamW over the matrices of one block; there is nothing to differentiate."""

    name = "adamw_step"
    description = "One step of torch's AdamW over the matrices of a block."
    operation = "adamw_step"
    sizes = MIXED_SIZES
    requires_grad = False

    def make_batch(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return the gradient of each matrix."""
        sizes = enumerate(self.shape.block_matrices)
        return tuple(self.activations(*size, seed=seed) for seed, size in sizes), {}

    def fn(self) -> Callable[..., Any]:
        """Return a module that holds the matrices and steps with the gradients that it is given."""
        return self.module(impl.layers.AdamWStep, self.shape.block_matrices)

    def reference(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same in float64, the optimizer's state included."""
        return impl.layers.stepping_in_float64(fn)

    def bytes_moved(self) -> int | None:
        """Return those of weights and two moments, read and written, and of gradients."""
        return self.moved(7 * sum(rows * columns for rows, columns in self.shape.block_matrices))

"""Embedding of tokens, and of their positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from accel_bench_op.benchmarks import impl
from accel_bench_op.benchmarks.parts import PartBenchmark, Traffic
from accel_bench_op.benchmarks.shapes import LLAMA_SIZES, MIXED_SIZES


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

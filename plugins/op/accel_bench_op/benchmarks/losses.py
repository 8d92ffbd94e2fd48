"""Cross-entropy, from logits and from hidden states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from accel_bench_op.benchmarks import impl
from accel_bench_op.benchmarks.parts import INDEX_BYTES, PartBenchmark, Traffic
from accel_bench_op.benchmarks.shapes import MIXED_SIZES


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

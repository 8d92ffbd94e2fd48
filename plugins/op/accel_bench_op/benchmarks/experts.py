"""Experts of a mixture, each token computed by some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from accel_bench_op.benchmarks import impl
from accel_bench_op.benchmarks.parts import INDEX_BYTES, Traffic, TransformersBenchmark
from accel_bench_op.benchmarks.shapes import sizes_of

MIXTRAL_SIZES = sizes_of("tiny-mixtral", "mixtral-8x7b")
"""Sizes of mixtures."""


class GroupedExperts(TransformersBenchmark):
    """Gated experts of Mixtral, by transformers' grouped product."""

    name = "grouped_experts"
    description = "Experts of Mixtral by one grouped product, without their router."
    operation = "grouped_experts"
    sizes = MIXTRAL_SIZES

    def make_batch(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return hidden states (tokens, hidden), and experts and their weights by token."""
        import torch

        chosen = self.shape.experts_per_token
        scores = self.drawn(torch.rand, self.shape.tokens, self.shape.experts)
        weights, experts = scores.topk(chosen)
        hidden = self.activations(self.shape.tokens, self.shape.hidden)
        return (hidden, experts, weights / weights.sum(-1, keepdim=True)), {}

    def fn(self) -> Callable[..., Any]:
        """Return transformers' module of experts."""
        return impl.transformers_parts.experts(self.shape, self.device, self.dtype)

    def flops(self) -> int | None:
        """Return those of three products for each token and expert of its."""
        per_expert = 3 * self.shape.hidden * self.shape.intermediate
        return 2 * self.shape.tokens * self.shape.experts_per_token * per_expert

    def traffic(self) -> Traffic:
        """Return hidden states, the choice of experts, and the weights of all experts."""
        hidden = self.shape.tokens * self.shape.hidden
        chosen = self.shape.tokens * self.shape.experts_per_token
        return Traffic(
            inputs=hidden,
            outputs=hidden,
            weights=self.shape.experts * 3 * self.shape.hidden * self.shape.intermediate,
            once=chosen,
            other_bytes=chosen * INDEX_BYTES,
        )

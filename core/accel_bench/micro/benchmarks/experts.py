"""Experts of a mixture, each token computed by some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from accel_bench.micro.benchmarks.parts import PartBenchmark
from accel_bench.micro.benchmarks.shapes import sizes_of

if TYPE_CHECKING:
    import torch

MIXTRAL_SIZES = sizes_of("tiny-mixtral", "mixtral-8x7b")
"""Sizes of mixtures."""


class GroupedExperts(PartBenchmark):
    """Gated experts of Mixtral, by transformers' grouped product."""

    name = "grouped_experts"
    description = "Experts of Mixtral by one grouped product, without their router."
    operation = "grouped_experts"
    sizes = MIXTRAL_SIZES

    def __init__(
        self,
        model: str = "tiny-mixtral",
        batch: int | None = None,
        length: int | None = None,
        device: str = "cpu",
        dtype: str | torch.dtype = "float32",
    ) -> None:
        super().__init__(model, batch, length, device, dtype)

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
        from accel_bench.micro.benchmarks.impl import transformers_parts

        return transformers_parts.experts(self.shape, self.device, self.dtype)

    def reference(self, fn: Any) -> Callable[..., Any]:
        """Return a copy in float64, whose experts multiply one after the other."""
        from accel_bench.micro.benchmarks.impl import transformers_parts

        return transformers_parts.in_float64(fn)

    def flops(self) -> int | None:
        """Return those of three products for each token and expert of its."""
        per_expert = 3 * self.shape.hidden * self.shape.intermediate
        return 2 * self.shape.tokens * self.shape.experts_per_token * per_expert

    def bytes_moved(self) -> int | None:
        """Return those of hidden states, the output, the choice, and the weights of all experts."""
        shape = self.shape
        weights = shape.experts * 3 * shape.hidden * shape.intermediate
        chosen = shape.tokens * shape.experts_per_token
        return self.moved(2 * shape.tokens * shape.hidden, weights, chosen, indices=chosen)

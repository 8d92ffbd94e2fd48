"""Experts, blocks and whole models of GPT-2, Llama, Mistral, Mixtral, by transformers' classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from accel_bench_op.benchmark import Benchmark
from accel_bench_op.benchmarks import impl
from accel_bench_op.benchmarks.attention import attention_flops
from accel_bench_op.benchmarks.parts import PartBenchmark
from accel_bench_op.benchmarks.shapes import (
    GPT2_SIZES,
    LLAMAS,
    Shape,
    Sizes,
    sizes_of,
    with_few_layers,
)

MISTRALS = sizes_of("tiny-mistral", "mistral-7b")
MIXTRALS = sizes_of("tiny-mixtral", "mixtral-8x7b")


class TransformersBenchmark(PartBenchmark):
    """Benchmark of a module of transformers', which may hold experts."""

    counts_bytes = False

    def reference(self, fn: Any) -> Callable[..., Any]:
        """Return a copy in float64, whose experts multiply one after the other."""
        return impl.transformers_parts.in_float64(fn)

    def reference_with_choices(self, fn: Any) -> Callable[..., Any] | None:
        """Return that copy with the experts that `fn` chooses; None where there are no experts."""
        return impl.transformers_parts.in_float64_with_experts_of(fn)


class GroupedExperts(TransformersBenchmark):
    """Gated experts of Mixtral, by transformers' grouped product."""

    name = "grouped_experts"
    description = "Experts of Mixtral by one grouped product, without their router."
    operation = "grouped_experts"
    sizes = MIXTRALS
    counts_bytes = True

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


class _Part(TransformersBenchmark):
    """Block, or its attention, on hidden states of shape (batch, tokens, hidden)."""

    rotates = True
    """True if it takes cosines and sines."""

    def make_batch(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return hidden states, and cosines and sines of the positions."""
        hidden, _ = super().make_batch()
        return (*hidden, *(self.turns() if self.rotates else ())), {}

    def fn(self) -> Callable[..., Any]:
        """Return a module around transformers' block."""
        parts = impl.transformers_parts
        return parts.Part(parts.block(self.shape, self.device, self.dtype))

    def flops(self) -> int | None:
        """Return those of a block."""
        return block_flops(self.shape)


class _AttentionPart(_Part):
    """Attention with its projections."""

    def fn(self) -> Callable[..., Any]:
        """Return a module around transformers' attention."""
        parts = impl.transformers_parts
        return parts.Part(parts.attention(self.shape, self.device, self.dtype))

    def flops(self) -> int | None:
        """Return those of projections, scores and values."""
        return attention_part_flops(self.shape)


class _Model(TransformersBenchmark):
    """Causal language model with its loss; fewer blocks fit in less memory."""

    operation = "causal_lm"

    def make_batch(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return tokens of shape (batch, tokens)."""
        return (self.indices(self.shape.vocabulary, self.shape.batch, self.shape.length),), {}

    def fn(self) -> Callable[..., Any]:
        """Return a module whose `model` is transformers' and which returns its loss."""
        parts = impl.transformers_parts
        return parts.Loss(parts.model(self.shape, self.device, self.dtype))

    def flops(self) -> int | None:
        """Return those of all blocks and of the output projection."""
        head = 2 * self.shape.tokens * self.shape.hidden * self.shape.vocabulary
        return self.shape.layers * block_flops(self.shape) + head


def _of(
    kind: type[Benchmark], name: str, description: str, sizes: Sizes, **more: Any
) -> type[Benchmark]:
    """Return a kind of benchmark under a name, at the sizes of one family of models."""
    own = {"name": name, "description": description, "sizes": sizes, "__module__": __name__}
    return type(name, (kind,), {"__doc__": description, **own, **more})


nanogpt_attention = _of(
    _AttentionPart,
    "nanogpt_attention",
    "Causal self-attention of GPT-2 with its projections, at nanoGPT's sizes.",
    GPT2_SIZES,
    rotates=False,
)
llama_attention = _of(
    _AttentionPart,
    "llama_attention",
    "Causal self-attention of Llama with its projections and rotary embedding.",
    LLAMAS,
)
nanogpt_block = _of(
    _Part, "nanogpt_block", "Block of GPT-2 at nanoGPT's sizes.", GPT2_SIZES, rotates=False
)
llama_block = _of(_Part, "llama_block", "Block of Llama.", LLAMAS)
mistral_block = _of(_Part, "mistral_block", "Block of Mistral.", MISTRALS)
mixtral_block = _of(
    _Part, "mixtral_block", "Block of Mixtral with its router and experts.", MIXTRALS
)
nanogpt = _of(
    _Model,
    "nanogpt_gpt2",
    "GPT-2 with its loss at nanoGPT's sizes.",
    GPT2_SIZES,
    operation="gpt2_lm",
)
llama = _of(_Model, "llama", "Llama with its loss.", with_few_layers(LLAMAS))
mistral = _of(_Model, "mistral", "Mistral with its loss.", with_few_layers(MISTRALS))
mixtral = _of(_Model, "mixtral", "Mixtral with its loss.", with_few_layers(MIXTRALS))


def attention_part_flops(shape: Shape) -> int:
    """Return the forward FLOPs of attention with its projections, half of the scores counted."""
    projected = shape.hidden * shape.head * (2 * shape.heads + 2 * shape.key_heads)
    scores = attention_flops(shape.heads, shape.head, [shape.length] * shape.batch)
    return 2 * shape.tokens * projected + scores


def block_flops(shape: Shape) -> int:
    """Return the forward FLOPs of a block: attention, and an MLP or a token's experts."""
    per_token = shape.mlp_matrices * shape.experts_per_token * shape.intermediate * shape.hidden
    router = shape.hidden * shape.experts
    return attention_part_flops(shape) + 2 * shape.tokens * (per_token + router)

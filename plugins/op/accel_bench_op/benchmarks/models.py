"""Benchmarks of experts, blocks and models of GPT-2, Llama, Mistral, Mixtral in transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from accel_bench_op.benchmark import Benchmark
from accel_bench_op.benchmarks import impl
from accel_bench_op.benchmarks.attention import attention_flops
from accel_bench_op.benchmarks.part_benchmark import PartBenchmark
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
    """Base class of benchmarks of a transformers module, possibly with experts."""

    counts_bytes = False

    def reference(self, fn: Any) -> Callable[..., Any]:
        """Return a float64 copy of the module `fn`, whose experts multiply in a loop."""
        return impl.transformers_parts.in_float64(fn)

    def reference_with_choices(self, fn: Any) -> Callable[..., Any] | None:
        """Return a float64 copy of `fn` with `fn`'s choice of experts; None without routers."""
        return impl.transformers_parts.in_float64_with_experts_of(fn)


class GroupedExperts(TransformersBenchmark):
    """Experts of Mixtral by one grouped product, without their router."""

    name = "grouped_experts"
    operation = "grouped_experts"
    sizes = MIXTRALS
    counts_bytes = True

    def make_batch(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return hidden states (tokens, hidden), and each token's experts and their weights."""
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
        """Return the forward FLOPs: three matrix products for each token and expert it uses."""
        per_expert = 3 * self.shape.hidden * self.shape.intermediate
        return 2 * self.shape.tokens * self.shape.experts_per_token * per_expert


class _BlockBenchmark(TransformersBenchmark):
    """Base class of benchmarks of a decoder block or its attention on hidden states."""

    part: Literal["block", "attention"] = "block"
    rotates = True
    """True if the module takes cosines and sines of rotary embedding."""

    def make_batch(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return hidden states, with cosines and sines if the module takes them."""
        hidden, _ = super().make_batch()
        return (*hidden, *(self.turns() if self.rotates else ())), {}

    def fn(self) -> Callable[..., Any]:
        """Return a module that wraps transformers' decoder block or attention."""
        parts = impl.transformers_parts
        make = parts.block if self.part == "block" else parts.attention
        return parts.BlockModule(make(self.shape, self.device, self.dtype))

    def flops(self) -> int | None:
        """Return the forward FLOPs of the block, or of its attention and projections."""
        return (block_flops if self.part == "block" else attention_part_flops)(self.shape)


class _ModelBenchmark(TransformersBenchmark):
    """Base class of benchmarks of the loss of a causal language model, whole or shortened."""

    operation = "causal_lm"

    def make_batch(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return random token ids of shape (batch, tokens)."""
        return (self.indices(self.shape.vocabulary, self.shape.batch, self.shape.length),), {}

    def fn(self) -> Callable[..., Any]:
        """Return a module that computes the loss of the transformers model in `fn().model`."""
        parts = impl.transformers_parts
        return parts.LossOnlyModel(parts.model(self.shape, self.device, self.dtype))

    def flops(self) -> int | None:
        """Return the forward FLOPs of all blocks and of the output projection."""
        head = 2 * self.shape.tokens * self.shape.hidden * self.shape.vocabulary
        return self.shape.layers * block_flops(self.shape) + head


def _of(
    kind: type[Benchmark], name: str, description: str, sizes: Sizes, **more: Any
) -> type[Benchmark]:
    """Return a subclass of the benchmark `kind` with a name, a description, and sizes.

    `more` are further attributes of the class.
    """
    own = {"__doc__": description, "name": name, "sizes": sizes, "__module__": __name__}
    return type(name, (kind,), {**own, **more})


nanogpt_attention = _of(
    _BlockBenchmark,
    "nanogpt_attention",
    "Causal self-attention of GPT-2 with its projections, at nanoGPT's sizes.",
    GPT2_SIZES,
    part="attention",
    rotates=False,
)
llama_attention = _of(
    _BlockBenchmark,
    "llama_attention",
    "Causal self-attention of Llama with its projections and rotary embedding.",
    LLAMAS,
    part="attention",
)
nanogpt_block = _of(
    _BlockBenchmark,
    "nanogpt_block",
    "Block of GPT-2 at nanoGPT's sizes.",
    GPT2_SIZES,
    rotates=False,
)
llama_block = _of(_BlockBenchmark, "llama_block", "Block of Llama.", LLAMAS)
mistral_block = _of(_BlockBenchmark, "mistral_block", "Block of Mistral.", MISTRALS)
mixtral_block = _of(
    _BlockBenchmark, "mixtral_block", "Block of Mixtral with its router and experts.", MIXTRALS
)
nanogpt = _of(
    _ModelBenchmark,
    "nanogpt_gpt2",
    "GPT-2 with its loss at nanoGPT's sizes.",
    GPT2_SIZES,
    operation="gpt2_lm",
)
llama = _of(_ModelBenchmark, "llama", "Llama with its loss.", with_few_layers(LLAMAS))
mistral = _of(_ModelBenchmark, "mistral", "Mistral with its loss.", with_few_layers(MISTRALS))
mixtral = _of(_ModelBenchmark, "mixtral", "Mixtral with its loss.", with_few_layers(MIXTRALS))


def attention_part_flops(shape: Shape) -> int:
    """Return the forward FLOPs of a block's causal attention and its four projections."""
    projected = shape.hidden * shape.head * (2 * shape.heads + 2 * shape.key_heads)
    scores = attention_flops(shape.heads, shape.head, [shape.length] * shape.batch)
    return 2 * shape.tokens * projected + scores


def block_flops(shape: Shape) -> int:
    """Return a block's forward FLOPs: attention, and the MLP or each token's experts."""
    per_token = shape.mlp_matrices * shape.experts_per_token * shape.intermediate * shape.hidden
    router = shape.hidden * shape.experts
    return attention_part_flops(shape) + 2 * shape.tokens * (per_token + router)

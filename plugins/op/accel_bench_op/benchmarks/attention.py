"""Benchmarks of attention: sdpa, flash, flex, and packed sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from accel_bench_op.benchmarks import impl
from accel_bench_op.benchmarks.part_benchmark import PartBenchmark
from accel_bench_op.benchmarks.shapes import MIXED_SIZES

PARTS_OF_A_ROW = (2, 4, 8, 8)
"""Divisors of a row's tokens that give the lengths of its packed sequences."""


NO_FLOAT32 = "its kernel has no float32 on a GPU; set the dtype to bfloat16"
"""Reason why flash attention cannot run."""


class _Attention(PartBenchmark):
    """Causal attention of tensors of shape (batch, heads, tokens, width of a head)."""

    operation = "attention"
    sizes = MIXED_SIZES
    is_flash = False
    """True for the flash kernel on a GPU."""

    def make_batch(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return queries, keys and values; keys and values may have fewer heads."""
        sizes = self.shape.length, self.shape.head
        query = self.activations(self.shape.batch, self.shape.heads, *sizes)
        key, value = (
            self.activations(self.shape.batch, self.shape.key_heads, *sizes, seed=seed)
            for seed in (1, 2)
        )
        return (query, key, value), {}

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each sequence."""
        return [self.shape.length] * self.shape.batch

    def unavailable(self) -> str:
        """Return why flash attention cannot run in this dtype on this device; empty if it can."""
        lacks = self.is_flash and self.device != "cpu" and self.dtype in ("float32", "float64")
        return f"benchmark {self.name}: {NO_FLOAT32}" if lacks else ""

    def flops(self) -> int | None:
        """Return the forward FLOPs of the two matrix products, without the masked half."""
        return attention_flops(self.shape.heads, self.shape.head, self.lengths)


class SdpaAttention(_Attention):
    """Causal attention by torch's scaled_dot_product_attention."""

    name = "sdpa_attention"

    def fn(self) -> Callable[..., Any]:
        """Return an attention function of queries, keys and values."""
        return impl.attention.sdpa


class FlashAttention(_Attention):
    """Causal attention by torch's flash attention kernel alone."""

    name = "flash_attention"
    is_flash = True

    def fn(self) -> Callable[..., Any]:
        """Return an attention function of queries, keys and values."""
        return impl.attention.flash


class FlexAttention(_Attention):
    """Causal attention by torch's flex_attention; on a CPU without a backward pass."""

    name = "flex_attention"

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        """True if flex attention has a backward pass on this device."""
        return self.device != "cpu"

    def fn(self) -> Callable[..., Any]:
        """Return an attention function of queries, keys and values."""
        return impl.attention.flex(self.shape.length, self.device)


class VarlenAttention(_Attention):
    """Causal attention of sequences of several lengths packed in rows, unpadded."""

    name = "varlen_attention"
    is_flash = True

    @property
    def lengths(self) -> list[int]:
        return [self.shape.length // part for part in PARTS_OF_A_ROW] * self.shape.batch

    def make_batch(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return queries, keys, values (tokens, heads, width of a head), and sequences' starts."""
        import torch

        tokens, head = sum(self.lengths), self.shape.head
        query = self.activations(tokens, self.shape.heads, head)
        key, value = (
            self.activations(tokens, self.shape.key_heads, head, seed=seed) for seed in (1, 2)
        )
        ends = torch.tensor(self.lengths).cumsum(0)
        starts = torch.nn.functional.pad(ends, (1, 0)).to(self.device, torch.int32)
        return (query, key, value, starts), {}

    def fn(self) -> Callable[..., Any]:
        """Return an attention function of queries, keys, values and start indices."""
        if self.device == "cpu":
            return impl.attention.one_by_one(self.lengths)
        return impl.attention.varlen(max(self.lengths))


def attention_flops(heads: int, head: int, lengths: Sequence[int]) -> int:
    """Return the forward FLOPs of causal attention, half of those of attention without a mask.

    `head` is the width of a head, and `lengths` are the tokens of each sequence.
    """
    return 2 * heads * head * sum(length * length for length in lengths)

"""Formulas of the FLOPs of one token; a multiplication and an addition are two FLOPs.

A weight matrix costs 2 x rows x columns FLOPs forward, as much again for the gradient of its input
if a module before it trains, and as much again for its own gradient if it trains itself: 6, 4 or 2
FLOPs per weight. Attention is two matrix products forward (scores and values) and up to four
backward, one for each operand that needs a gradient. Norms, activations, softmax, biases,
embeddings and the optimizer are left out, as is usual, since they are no matrix products.
"""

from __future__ import annotations

from accel_bench.documents.base import Frozen
from accel_bench.flops.workload import Attention, Matmul, Workload


class ByConvention(Frozen):
    """FLOPs or FLOP/s, once without and once with the attention scores that a causal mask hides."""

    causal: float
    """Number for unmasked scores only, half of all: the primary number."""

    non_causal: float
    """Number for all scores, as in older tables and in torch's own counter."""

    def times(self, factor: float) -> ByConvention:
        """Return both numbers multiplied by a factor."""
        return ByConvention(causal=self.causal * factor, non_causal=self.non_causal * factor)

    def plus(self, other: ByConvention) -> ByConvention:
        """Return the sums of this object's numbers and of `other`'s, for each convention."""
        return ByConvention(
            causal=self.causal + other.causal, non_causal=self.non_causal + other.non_causal
        )


def model_flops(workload: Workload, length: float) -> ByConvention:
    """Return the FLOPs of one token, forward and backward, in a sequence of `length` tokens.

    If all weights train, attention takes 12 x layers x heads x head size x length FLOPs non-causal,
    and half of that causal.
    """
    products = sum(matmul_flops(matmul) for matmul in workload.matmuls)
    hidden = sum(matmul_flops(matmul) * matmul.hidden for matmul in workload.matmuls)
    flops = _with_attention(products, sum(attention_flops(a, length) for a in workload.attentions))
    return flops.plus(ByConvention(causal=-hidden, non_causal=0))


def recomputed_flops(workload: Workload, length: float) -> ByConvention | None:
    """Return the FLOPs that activation checkpointing adds for one token, or None if unknown.

    They are unknown if it is unknown which matrix products the backward pass computes again.
    """
    again = [m.recomputed for m in workload.matmuls] + [a.recomputed for a in workload.attentions]
    if None in again:
        return None
    products = sum(forward_flops(m) for m in workload.matmuls if m.recomputed)
    attention = sum(attention_forward_flops(a, length) for a in workload.attentions if a.recomputed)
    return _with_attention(products, attention)


def hardware_flops(workload: Workload, length: float) -> ByConvention | None:
    """Return the FLOPs of one token, recomputation included, or None if unknown.

    HFU counts these FLOPs. Recomputation inside a fused attention kernel is left out.
    """
    again = recomputed_flops(workload, length)
    return None if again is None else model_flops(workload, length).plus(again)


def forward_flops(matmul: Matmul) -> float:
    """Return the forward FLOPs of all matrices of one kind for one token."""
    return 2 * matmul.rows * matmul.columns * matmul.count * matmul.share


def matmul_flops(matmul: Matmul) -> float:
    """Return the forward and backward FLOPs of all matrices of one kind for one token."""
    return forward_flops(matmul) * (1 + matmul.input_needs_gradient + matmul.trains)


def attention_forward_flops(attention: Attention, length: float) -> float:
    """Return the forward FLOPs of attention for one token of a sequence of `length` tokens."""
    sizes = attention.query_size + attention.value_size
    return 2 * attention.heads * attention.count * visible(attention, length) * sizes


def attention_flops(attention: Attention, length: float) -> float:
    """Return the forward and backward FLOPs of attention for one token of a sequence.

    `length` is the sequence's number of tokens. The backward pass has a matrix product for each
    gradient: of the attention weights, if queries or keys need a gradient, and of queries, keys and
    values.
    """
    query, key = attention.query_needs_gradient, attention.key_needs_gradient
    backward = attention.query_size * (query + key) + attention.value_size * (
        (query or key) + attention.value_needs_gradient
    )
    forward = attention_forward_flops(attention, length)
    return forward + 2 * attention.heads * attention.count * visible(attention, length) * backward


def visible(attention: Attention, length: float) -> float:
    """Return the mean number of tokens that a token attends to if there is no causal mask; a mask
    halves this number. `length` is the sequence's number of tokens. With a window of w tokens, a
    token attends to w tokens on each side, on average to 2 w - w x w / length."""
    window = attention.window
    if window is None or window >= length:
        return length
    return 2 * window - window * window / length


def _with_attention(products: float, attention: float) -> ByConvention:
    return ByConvention(causal=products + attention / 2, non_causal=products + attention)

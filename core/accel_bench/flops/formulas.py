"""Formulas of the FLOPs of one token; a multiplication and an addition are two.

A matrix costs 2 x rows x columns forward, as much again for the gradient of its input if a module
before it trains, and as much again for its own gradient if it trains itself: 6, 4 or 2 FLOPs per
weight. Attention is two products forward (scores and values) and up to four backward, one for each
operand that needs a gradient. Norms, activations, softmax, biases, embeddings and the optimizer are
left out, as is usual, since they are no matmuls.
"""

from __future__ import annotations

from accel_bench.documents.base import Frozen
from accel_bench.flops.workload import Attention, Matmul, Workload


class ByConvention(Frozen):
    """Number under both conventions about the half of attention that a causal mask hides."""

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
    """Return the FLOPs of one token of a sequence of `length` tokens: forward and backward once.

    If all weights train, attention takes 12 x layers x heads x head size x length of them
    non-causal, and half of that causal.
    """
    products = sum(matmul_flops(matmul) for matmul in workload.matmuls)
    hidden = sum(matmul_flops(matmul) * matmul.hidden for matmul in workload.matmuls)
    flops = _with_attention(products, sum(attention_flops(a, length) for a in workload.attentions))
    return flops.plus(ByConvention(causal=-hidden, non_causal=0))


def recomputed_flops(workload: Workload, length: float) -> ByConvention | None:
    """Return the FLOPs that activation checkpointing adds for one token, or None if unknown.

    They are unknown if it is unknown which products are recomputed.
    """
    again = [m.recomputed for m in workload.matmuls] + [a.recomputed for a in workload.attentions]
    if None in again:
        return None
    products = sum(forward_flops(m) for m in workload.matmuls if m.recomputed)
    attention = sum(attention_forward_flops(a, length) for a in workload.attentions if a.recomputed)
    return _with_attention(products, attention)


def hardware_flops(workload: Workload, length: float) -> ByConvention | None:
    """Return model FLOPs plus recomputation for one token, as HFU counts them, or None if unknown.

    Recomputation inside a fused attention kernel is not counted.
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

    `length` is the sequence's number of tokens. Backward, the gradient of the attention weights is
    a product with the values, needed if queries or keys need a gradient; queries, keys and values
    are one product each.
    """
    query, key = attention.query_needs_gradient, attention.key_needs_gradient
    backward = attention.query_size * (query + key) + attention.value_size * (
        (query or key) + attention.value_needs_gradient
    )
    forward = attention_forward_flops(attention, length)
    return forward + 2 * attention.heads * attention.count * visible(attention, length) * backward


def visible(attention: Attention, length: float) -> float:
    """Return the mean number of a sequence's `length` tokens that a token attends to, unmasked. It
    is twice the number with the causal mask. A window of w tokens is a band of w on both sides of
    the diagonal, so 2 w - w x w / length."""
    window = attention.window
    if window is None or window >= length:
        return length
    return 2 * window - window * window / length


def _with_attention(products: float, attention: float) -> ByConvention:
    return ByConvention(causal=products + attention / 2, non_causal=products + attention)

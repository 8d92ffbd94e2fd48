"""The workload of a model for one token: its matmuls and attention, and which of them train."""

from __future__ import annotations

from typing import Literal

from accel_bench.documents.base import Frozen


class Matmul(Frozen):
    """Weight matrices of one kind, each multiplied once with every token that reaches it."""

    name: str
    """Path of the weights, with the layer's number left out: `layers.mlp.up_proj`."""

    rows: int
    """Features that come out."""

    columns: int
    """Features that go in; a matrix has rows x columns parameters."""

    count: int = 1
    """How many there are of this kind."""

    share: float = 1.0
    """Share of the tokens that reaches each: 2 / 8 for experts of which a token uses 2 of 8."""

    trains: bool = True
    """True if the weights receive a gradient."""

    input_needs_gradient: bool = True
    """True if something before them trains, so that the gradient flows on through them."""

    recomputed: bool | None = False
    """True if the forward product is computed once more in the backward pass; null: not known."""

    dtype: str = ""
    """Dtype of the product, such as `bfloat16`; empty where only the architecture is known."""

    weight: bool = True
    """True if it multiplies with weights; observed products of attention do not."""

    hidden: float = 0.0
    """Fraction of the product that a causal mask hides, where it was observed."""


class Attention(Frozen):
    """Layers of softmax attention of one kind."""

    heads: int
    """Query heads."""

    query_size: int
    """Size of a head's queries and keys."""

    value_size: int
    """Size of a head's values."""

    count: int = 1
    """How many layers of this kind there are."""

    window: int | None = None
    """Tokens that one token sees at most, itself included; null is all of them."""

    query_needs_gradient: bool = True
    """True if the queries come from something that trains."""

    key_needs_gradient: bool = True
    """True if the keys come from something that trains."""

    value_needs_gradient: bool = True
    """True if the values come from something that trains."""

    recomputed: bool | None = False
    """True if its layers are computed once more in the backward pass; null: not known."""


class Workload(Frozen):
    """All of a model's matmuls and attention, the output projection included, look-ups not."""

    matmuls: tuple[Matmul, ...]
    """Every kind of weight matrix, adapters' included."""

    attentions: tuple[Attention, ...] = ()
    """Every kind of attention layer."""

    flops_method: Literal["read", "observed"] = "read"
    """`read` from the modules of a decoder, or `observed`: the products of one forward pass, those
    of attention among the matmuls, for the shapes that its batch had."""

    observed_elements: int | None = None
    """What the task counts, padding included, in the observed batch; other batches have other
    FLOPs."""

    observed_samples: int | None = None
    """Samples of the observed batch."""

    observed_pairs: int | None = None
    """Its pairs of tokens, padding included, where they were counted."""

    @property
    def matmul_parameters(self) -> int:
        """Number of weights in matmuls: no embedding, no norm, no bias."""
        return sum(m.rows * m.columns * m.count for m in self.matmuls if m.weight)

    @property
    def active_matmul_parameters(self) -> int:
        """Number of those that one token is multiplied with: fewer with experts."""
        found = (m.rows * m.columns * m.count * m.share for m in self.matmuls if m.weight)
        return round(sum(found))

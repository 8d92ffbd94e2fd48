"""The workload of a model for one token: its matmuls and attention, and their gradients."""

from __future__ import annotations

from typing import Literal

from accel_bench.documents.base import Frozen


class Matmul(Frozen):
    """Weight matrices of one kind, each multiplied once with every token that reaches it."""

    name: str
    """Path of the weights without the layer's number: `layers.mlp.up_proj`."""

    rows: int
    """Number of output features."""

    columns: int
    """Number of input features; a matrix has rows x columns parameters."""

    count: int = 1
    """Number of matrices of this kind."""

    share: float = 1.0
    """Fraction of the tokens that reach each matrix: 2 / 8 if a token uses 2 of 8 experts."""

    trains: bool = True
    """True if the weights receive a gradient."""

    input_needs_gradient: bool = True
    """True if the input needs a gradient, since a module before this one trains."""

    recomputed: bool | None = False
    """True if the backward pass computes the forward product again; null if unknown."""

    dtype: str = ""
    """Dtype of the product, such as `bfloat16`; empty if only the architecture is known."""

    weight: bool = True
    """True for a product with weights; false for observed products of attention."""

    hidden: float = 0.0
    """Fraction of an observed product that a causal mask hides."""


class Attention(Frozen):
    """Layers of softmax attention of one kind."""

    heads: int
    """Query heads."""

    query_size: int
    """Size of an attention head's queries and keys."""

    value_size: int
    """Size of an attention head's values."""

    count: int = 1
    """Number of layers of this kind."""

    window: int | None = None
    """Number of tokens that one token attends to at most, itself included; null is all."""

    query_needs_gradient: bool = True
    """True if the queries need a gradient."""

    key_needs_gradient: bool = True
    """True if the keys need a gradient."""

    value_needs_gradient: bool = True
    """True if the values need a gradient."""

    recomputed: bool | None = False
    """True if the backward pass computes the layers again; null if unknown."""


class Workload(Frozen):
    """All matmuls and attention of a model, with the output projection and without embeddings."""

    matmuls: tuple[Matmul, ...]
    """Every kind of weight matrix, adapters included."""

    attentions: tuple[Attention, ...] = ()
    """Every kind of attention layer."""

    flops_method: Literal["read", "observed"] = "read"
    """Origin of the workload: `read` from a decoder's modules, or `observed` as the products of one
    forward pass, attention among the matmuls, for the shapes of its batch."""

    observed_elements: int | None = None
    """Number of elements that the task counts, with padding, in the observed batch; null if
    `read`."""

    observed_samples: int | None = None
    """Number of samples in the observed batch."""

    observed_pairs: int | None = None
    """Number of token pairs in the observed batch, with padding, if they were counted."""

    @property
    def matmul_parameters(self) -> int:
        """Number of weights in matmuls: no embedding, no norm, no bias."""
        return sum(m.rows * m.columns * m.count for m in self.matmuls if m.weight)

    @property
    def active_matmul_parameters(self) -> int:
        """Number of weights in matmuls that a token is multiplied with, without unused experts."""
        products = (m.rows * m.columns * m.count * m.share for m in self.matmuls if m.weight)
        return round(sum(products))

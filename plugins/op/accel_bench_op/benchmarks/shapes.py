"""Shapes of the benchmarks: models of the catalog, nanoGPT's sizes, and tiny ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from accel_bench import ModelUse, architecture_of, model_config
from accel_bench.errors import AccelBenchError, did_you_mean

Sizes = Mapping[str, Mapping[str, object]]
"""Arguments of a benchmark by the name of a size."""


def _size(*keys: str, default: Callable[[Shape], int] | None = None) -> cached_property[int]:
    """Return a cached property: the value of the first key that the configuration sets.

    `default` computes the value from the shape if no key is set.
    """

    def read(shape: Shape) -> int:
        for key in keys:
            if (value := shape.config.get(key)) is not None:
                return int(value)
        if default is None:
            raise KeyError(f"{shape.architecture} has none of {', '.join(keys)}")
        return default(shape)

    return cached_property(read)


@dataclass(frozen=True)
class Shape:
    """Dimensions of a catalog model and a batch, with the same names for all architectures."""

    card: str
    """Name of the model in the catalog."""

    batch: int = 1
    """Number of sequences in a batch."""

    length: int = 4096
    """Number of tokens in a sequence."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    """Changed values by configuration key."""

    @property
    def architecture(self) -> str:
        """Class of the causal language model in transformers."""
        return architecture_of(ModelUse(id=self.card)) or ""

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """Configuration of the model, by transformers' keys."""
        return model_config(ModelUse(id=self.card, overrides={**self.changes})) or {}

    @property
    def tokens(self) -> int:
        """Number of tokens in a batch."""
        return self.batch * self.length

    hidden = _size("hidden_size", "n_embd")
    """Width of the residual stream."""

    intermediate = _size("intermediate_size", "n_inner", default=lambda shape: 4 * shape.hidden)
    """Inner width of an MLP, or of one expert."""

    layers = _size("num_hidden_layers", "n_layer")
    """Number of blocks."""

    heads = _size("num_attention_heads", "n_head")
    """Number of query heads."""

    key_heads = _size("num_key_value_heads", default=lambda shape: shape.heads)
    """Number of key and value heads."""

    head = _size("head_dim", default=lambda shape: shape.hidden // shape.heads)
    """Width of a head."""

    vocabulary = _size("vocab_size")
    """Vocabulary size."""

    experts = _size("num_local_experts", default=lambda shape: 0)
    """Number of experts in a block; 0 for a dense MLP."""

    experts_per_token = _size("num_experts_per_tok", default=lambda shape: 1)
    """Number of experts per token; 1 for a dense MLP."""

    @property
    def mlp_matrices(self) -> int:
        """Number of matrices in an MLP or expert: three if gated, else two."""
        return 2 if "n_embd" in self.config else 3

    @property
    def block_matrices(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of each matrix in a block; only one expert is included."""
        queries, keys = self.head * self.heads, self.head * self.key_heads
        hidden, inner = self.hidden, self.intermediate
        attention = (queries, hidden), (keys, hidden), (keys, hidden), (hidden, queries)
        return (*attention, *[(inner, hidden)] * (self.mlp_matrices - 1), (hidden, inner))

    @property
    def rotary_base(self) -> float:
        """Base of the angles of rotary embedding."""
        return float(self.config.get("rope_parameters", {}).get("rope_theta", 10000.0))


NANOGPT: Mapping[str, Any] = {
    "vocab_size": 50304,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
"""Changes that nanoGPT makes to GPT-2's configuration: vocabulary a multiple of 64, no dropout."""

SMALL: Mapping[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Configuration changes of tiny shapes, computed in milliseconds on a CPU. Rows are multiples of 64
values, the block of 4-bit scales, and of 16 bytes, for torch's grouped product."""


def _gpt2(width: int, layers: int, heads: int) -> Shape:
    """Return a shape of nanoGPT's GPT-2: 12 sequences of 1,024 tokens."""
    sizes = {"n_embd": width, "n_layer": layers, "n_head": heads}
    return Shape("gpt2", 12, 1024, {**NANOGPT, **sizes})


SHAPES: dict[str, Shape] = {
    "tiny-gpt2": Shape(
        "gpt2",
        2,
        16,
        {**NANOGPT, "vocab_size": 256, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32},
    ),
    "tiny-llama": Shape("llama-2-7b", 2, 16, SMALL),
    "tiny-mistral": Shape("mistral-7b", 2, 16, SMALL),
    "tiny-mixtral": Shape("mixtral-8x7b", 2, 16, {**SMALL, "num_local_experts": 4}),
    "gpt2": _gpt2(768, 12, 12),
    "gpt2-medium": _gpt2(1024, 24, 16),
    "gpt2-large": _gpt2(1280, 36, 20),
    "gpt2-xl": _gpt2(1600, 48, 25),
    "llama-2-7b": Shape("llama-2-7b"),
    "llama-2-70b": Shape("llama-2-70b"),
    "llama-3-8b": Shape("llama-3-8b", length=8192),
    "mistral-7b": Shape("mistral-7b"),
    "mixtral-8x7b": Shape("mixtral-8x7b"),
    "qwen2.5-7b": Shape("qwen2.5-7b"),
}
"""Shapes by name. Llama 2 7B has one sequence of 4,096 tokens, as published for Thunder, which also
times nanoGPT's sizes."""

FEW_LAYERS = "-2-layers"
"""Suffix of names of shapes with two blocks, for less memory."""

SHAPES |= {
    name + FEW_LAYERS: replace(SHAPES[name], changes={"num_hidden_layers": 2})
    for name in ("llama-2-7b", "llama-2-70b", "llama-3-8b", "mistral-7b", "mixtral-8x7b")
}


def find_shape(name: str, batch: int | None = None, length: int | None = None) -> Shape:
    """Return a shape by name, optionally with another batch or length.

    Raises AccelBenchError for an unknown name, with the nearest known name.
    """
    if name not in SHAPES:
        raise AccelBenchError(f"no shape is called {name!r}{did_you_mean(name, SHAPES)}")
    shape = SHAPES[name]
    return replace(shape, batch=batch or shape.batch, length=length or shape.length)


def sizes_of(tiny: str, *names: str) -> Sizes:
    """Return benchmark sizes by name: the shape `tiny` as size `tiny`, and the shapes `names`."""
    return {"tiny": {"model": tiny}, **{name: {"model": name} for name in names}}


def with_few_layers(sizes: Sizes) -> Sizes:
    """Return sizes with a variant of only two blocks after each size except `tiny`."""
    names = [size for name in sizes if name != "tiny" for size in (name, name + FEW_LAYERS)]
    return sizes_of(str(sizes["tiny"]["model"]), *names)


GPT2_SIZES = sizes_of("tiny-gpt2", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
"""Benchmark sizes at nanoGPT's shapes of GPT-2."""

LLAMAS = sizes_of("tiny-llama", "llama-2-7b", "llama-2-70b", "llama-3-8b")
"""Sizes of blocks, of whole models, and of adapted layers."""

LLAMA_SIZES = sizes_of("tiny-llama", "llama-2-7b", "llama-2-70b", "llama-3-8b", "qwen2.5-7b")
"""Sizes of operations in models like Llama."""

MIXED_SIZES = sizes_of("tiny-llama", "gpt2", "gpt2-xl", "llama-2-7b", "llama-3-8b")
"""Sizes of other operations: with as many key heads as query heads and fewer, and vocabularies of
32,000 to 128,256 tokens."""

"""Name the shapes of the benchmarks: models of the catalog, nanoGPT's sizes, and tiny ones."""

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
    """Return an attribute: the first of some keys that a configuration sets, or the default."""

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
    """Model of the catalog with changes, and the batch that it is benchmarked at; its sizes have
    one name, whatever its configuration calls them."""

    card: str
    """Name of the model in the catalog."""

    batch: int = 1
    """Sequences of a batch."""

    length: int = 4096
    """Tokens of a sequence."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the configuration with other values."""

    @property
    def architecture(self) -> str:
        """Class of the causal language model in transformers."""
        return architecture_of(ModelUse(id=self.card)) or ""

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """Its configuration, in transformers' words."""
        return model_config(ModelUse(id=self.card, overrides={**self.changes})) or {}

    @property
    def tokens(self) -> int:
        """Tokens of a batch."""
        return self.batch * self.length

    hidden = _size("hidden_size", "n_embd")
    """Width of the residual stream."""

    intermediate = _size("intermediate_size", "n_inner", default=lambda shape: 4 * shape.hidden)
    """Width inside of an MLP, or of one expert."""

    layers = _size("num_hidden_layers", "n_layer")
    """Number of blocks."""

    heads = _size("num_attention_heads", "n_head")
    """Number of heads of queries."""

    key_heads = _size("num_key_value_heads", default=lambda shape: shape.heads)
    """Number of heads of keys, and of values."""

    head = _size("head_dim", default=lambda shape: shape.hidden // shape.heads)
    """Width of a head."""

    vocabulary = _size("vocab_size")
    """Number of tokens that can be told apart."""

    experts = _size("num_local_experts", default=lambda shape: 0)
    """Number of experts of a block; 0 for a dense MLP."""

    experts_per_token = _size("num_experts_per_tok", default=lambda shape: 1)
    """Number of experts that compute a token; 1 for a dense MLP."""

    @property
    def mlp_matrices(self) -> int:
        """Number of matrices of an MLP or of an expert: a gated one has three."""
        return 2 if "n_embd" in self.config else 3

    @property
    def block_matrices(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of the matrices of a block; those of one expert, where there are any."""
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
"""What nanoGPT changes in GPT-2: a vocabulary of a multiple of 64, and no dropout."""

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
"""Sizes that a CPU computes in milliseconds. Rows fill a block of 64, which 4 bits share a scale
for, and 16 bytes, which torch's grouped product asks for."""


def _gpt2(width: int, layers: int, heads: int, batch: int = 12) -> Shape:
    """Return one of nanoGPT's sizes: 1,024 tokens; 12 sequences are its default."""
    sizes = {"n_embd": width, "n_layer": layers, "n_head": heads}
    return Shape("gpt2", batch, 1024, {**NANOGPT, **sizes})


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
"""Shapes by name. Thunder publishes Llama 2 7B at one sequence of 4,096 tokens, and times GPT-2's
sizes as nanoGPT has them."""

FEW_LAYERS = "-2-layers"
"""End of the names of shapes with two blocks, which fit into less memory."""

SHAPES |= {
    name + FEW_LAYERS: replace(SHAPES[name], changes={"num_hidden_layers": 2})
    for name in ("llama-2-7b", "llama-2-70b", "llama-3-8b", "mistral-7b", "mixtral-8x7b")
}


def find_shape(name: str, batch: int | None = None, length: int | None = None) -> Shape:
    """Return a shape by name, with another batch or length where they are given.

    Raises AccelBenchError for an unknown name, with the nearest one.
    """
    if name not in SHAPES:
        raise AccelBenchError(f"no shape is called {name!r}{did_you_mean(name, SHAPES)}")
    found = SHAPES[name]
    return replace(found, batch=batch or found.batch, length=length or found.length)


def sizes_of(tiny: str, *names: str) -> Sizes:
    """Return sizes of a benchmark by id: the tiny shape of a family, and shapes by their names."""
    return {"tiny": {"model": tiny}, **{name: {"model": name} for name in names}}


def with_few_layers(sizes: Sizes) -> Sizes:
    """Return sizes, and behind each but the tiny one that of two blocks of the same shape."""
    names = [one for name in sizes if name != "tiny" for one in (name, name + FEW_LAYERS)]
    return sizes_of(str(sizes["tiny"]["model"]), *names)


GPT2_SIZES = sizes_of("tiny-gpt2", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
"""nanoGPT's sizes."""

LLAMAS = sizes_of("tiny-llama", "llama-2-7b", "llama-2-70b", "llama-3-8b")
"""Sizes of blocks, of whole models, and of layers with adapters."""

LLAMA_SIZES = sizes_of("tiny-llama", "llama-2-7b", "llama-2-70b", "llama-3-8b", "qwen2.5-7b")
"""Sizes of operations that all models like Llama have."""

MIXED_SIZES = sizes_of("tiny-llama", "gpt2", "gpt2-xl", "llama-2-7b", "llama-3-8b")
"""Sizes of operations of both: heads of keys as many as of queries and fewer, vocabularies of
32,000 to 128,256 tokens."""

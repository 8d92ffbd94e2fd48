"""Parameters and workload of a catalog card, worked out from its figures without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from accel_bench.catalog.models import ModelCard
from accel_bench.documents.base import Frozen
from accel_bench.flops.workload import Attention, Matmul, Workload

Config = Mapping[str, Any]


class Architecture(Frozen):
    """What follows from a model's configuration when all of it trains."""

    parameters: int
    """Distinct parameters; tied ones count once."""

    positions: int | None
    """Longest sequence that learned positions allow; null where they are rotary."""

    workload: Workload
    """Its matmuls and attention."""


def read_architecture(card: ModelCard) -> Architecture | None:
    """Work out a card's architecture; None for a model type that is not known here.

    None too when a figure is missing or the parameters do not come out as published: then something
    is not understood, and its FLOPs would be wrong as well.
    """
    read = READERS.get(card.model_type)
    try:
        found = read(card.config) if read else None
    except KeyError:
        return None
    return found if found and found.parameters == card.parameters else None


def _rotary(  # noqa: PLR0913 - what differs within the family
    config: Config,
    *,
    query_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    windows: Iterable[tuple[int | None, int]] | None = None,
    mlp: list[Matmul] | None = None,
) -> Architecture:
    """Llama and its kin: rotary positions, gated MLP, RMS norms, keys and values of few heads.

    `windows` are windows of attention with the number of layers that have them; `mlp` replaces the
    gated MLP.
    """
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    size = config.get("head_dim") or hidden // heads
    queries, keys = heads * size, (config.get("num_key_value_heads") or heads) * size
    attention = [
        _layer("self_attn.q_proj", queries, hidden, layers),
        _layer("self_attn.k_proj", keys, hidden, layers),
        _layer("self_attn.v_proj", keys, hidden, layers),
        _layer("self_attn.o_proj", hidden, queries, layers),
    ]
    mlp = mlp or [
        _layer("mlp.gate_proj", inner, hidden, layers),
        _layer("mlp.up_proj", inner, hidden, layers),
        _layer("mlp.down_proj", hidden, inner, layers),
    ]
    biases = query_bias * (queries + 2 * keys) + output_bias * hidden
    biases += mlp_bias * (2 * inner + hidden)
    return _architecture(
        config,
        [*attention, *mlp],
        _attentions(heads, size, windows or [(None, layers)]),
        look_ups=config["vocab_size"] * hidden,
        others=layers * (2 * hidden + biases) + hidden,
        tied=config.get("tie_word_embeddings", False),
    )


def _llama(config: Config) -> Architecture:
    """Llama and Granite; Granite's multipliers are no matmuls."""
    bias = config.get("attention_bias", False)
    return _rotary(
        config, query_bias=bias, output_bias=bias, mlp_bias=config.get("mlp_bias", False)
    )


def _mistral(config: Config) -> Architecture:
    """A sliding window in every layer, of 4,096 tokens where the configuration does not say."""
    window = config.get("sliding_window", 4096)
    return _rotary(config, windows=[(window, config["num_hidden_layers"])])


def _qwen2(config: Config) -> Architecture:
    """Biases on queries, keys and values; windows, where used at all, from a certain layer on."""
    layers = config["num_hidden_layers"]
    whole = min(layers, config.get("max_window_layers", 28))
    window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
    if window is None:
        whole = layers
    windows = [(None, whole), (window, layers - whole)]
    return _rotary(config, query_bias=True, windows=[pair for pair in windows if pair[1]])


def _mixtral(
    config: Config, block: str = "mlp", router: str = "gate", bias: bool = False
) -> Architecture:
    """A router, and experts of which each token uses some; `block` holds both."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    layers, experts = config["num_hidden_layers"], config["num_local_experts"]
    share = config["num_experts_per_tok"] / experts
    mlp = [
        _layer(f"{block}.{router}", experts, hidden, layers),
        _layer(f"{block}.experts.gate_up_proj", 2 * inner, hidden, layers * experts, share),
        _layer(f"{block}.experts.down_proj", hidden, inner, layers * experts, share),
    ]
    window = config.get("sliding_window")
    return _rotary(config, query_bias=bias, output_bias=bias, mlp=mlp, windows=[(window, layers)])


def _granitemoe(config: Config) -> Architecture:
    """Mixtral by other names; Granite's multipliers are no matmuls."""
    bias = config.get("attention_bias", False)
    return _mixtral(config, "block_sparse_moe", "router", bias)


def _gpt2(config: Config, key_heads: int | None = None) -> Architecture:
    """GPT-2: learned positions, one matrix for queries, keys and values, biases everywhere."""
    hidden, layers, heads = config["n_embd"], config["n_layer"], config["n_head"]
    inner = config.get("n_inner") or 4 * hidden
    size = hidden // heads
    fused = hidden + 2 * size * (key_heads or heads)
    matmuls = [
        _layer("attn.c_attn", fused, hidden, layers),
        _layer("attn.c_proj", hidden, hidden, layers),
        _layer("mlp.c_fc", inner, hidden, layers),
        _layer("mlp.c_proj", hidden, inner, layers),
    ]
    biases = fused + hidden + inner + hidden
    return _architecture(
        config,
        matmuls,
        _attentions(heads, size, [(None, layers)]),
        look_ups=(config["vocab_size"] + config["n_positions"]) * hidden,
        others=layers * (biases + 4 * hidden) + 2 * hidden,
        tied=config.get("tie_word_embeddings", True),
        positions=config["n_positions"],
    )


def _gpt_bigcode(config: Config) -> Architecture:
    """GPT-2 with keys and values of a single head, unless told otherwise."""
    return _gpt2(config, key_heads=1 if config.get("multi_query", True) else None)


def _opt(config: Config) -> Architecture | None:
    """OPT: learned positions, two of them spare, biases everywhere.

    None for the variants that project their embeddings or put norms after.
    """
    hidden, inner = config["hidden_size"], config["ffn_dim"]
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    plain = config.get("do_layer_norm_before", True) and config.get("enable_bias", True)
    if not plain or config.get("word_embed_proj_dim", hidden) != hidden:
        return None
    matmuls = [
        _layer("self_attn.k_proj", hidden, hidden, layers),
        _layer("self_attn.v_proj", hidden, hidden, layers),
        _layer("self_attn.q_proj", hidden, hidden, layers),
        _layer("self_attn.out_proj", hidden, hidden, layers),
        _layer("fc1", inner, hidden, layers),
        _layer("fc2", hidden, inner, layers),
    ]
    positions = config["max_position_embeddings"]
    return _architecture(
        config,
        matmuls,
        _attentions(heads, hidden // heads, [(None, layers)]),
        look_ups=(config["vocab_size"] + positions + 2) * hidden,
        others=layers * (5 * hidden + inner + 4 * hidden) + 2 * hidden,
        tied=config.get("tie_word_embeddings", True),
        positions=positions,
    )


READERS: dict[str, Callable[[Config], Architecture | None]] = {
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt_bigcode,
    "granite": _llama,
    "granitemoe": _granitemoe,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "opt": _opt,
    "qwen2": _qwen2,
}
"""How each model type of transformers is read."""


def _layer(name: str, rows: int, columns: int, count: int, share: float = 1.0) -> Matmul:
    """A kind of matrix of the decoder layers."""
    return Matmul(name=f"layers.{name}", rows=rows, columns=columns, count=count, share=share)


def _attentions(
    heads: int, size: int, windows: Iterable[tuple[int | None, int]]
) -> tuple[Attention, ...]:
    """Attention with equal heads, by window."""
    return tuple(
        Attention(heads=heads, query_size=size, value_size=size, window=window, count=layers)
        for window, layers in windows
    )


def _architecture(  # noqa: PLR0913 - the sum of its parts
    config: Config,
    matmuls: list[Matmul],
    attentions: tuple[Attention, ...],
    *,
    look_ups: int,
    others: int,
    tied: bool,
    positions: int | None = None,
) -> Architecture:
    """Add the output projection, which is a matmul even where its weights are the embeddings'.

    `look_ups` are parameters of embeddings, `others` those of norms and biases.
    """
    output = Matmul(name="lm_head", rows=config["vocab_size"], columns=matmuls[0].columns)
    workload = Workload(matmuls=(*matmuls, output), attentions=attentions)
    shared = output.rows * output.columns if tied else 0
    return Architecture(
        parameters=workload.matmul_parameters + look_ups + others - shared,
        positions=positions,
        workload=workload,
    )

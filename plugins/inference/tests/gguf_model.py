"""Write a small llama of transformers as a GGUF file, the format that llama.cpp loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FIRST_LETTER = 0x4E00
"""Letter of token 0: each token is one letter, so that texts identify tokens."""

LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Names of a block's weights in GGUF, by transformers' names."""


def write_gguf(model: Any, path: Path) -> None:
    """Write weights, shape and a vocabulary of letters in float32."""
    import gguf

    config, weights = model.config, model.state_dict()
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _add_letters(writer, config.vocab_size)
    for name, tensor in weights.items():
        writer.add_tensor(_name(name), _in_order_of_llama(name, tensor, config).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_letters(writer: Any, tokens: int) -> None:
    """Add the vocabulary: control tokens would have no text."""
    import gguf

    writer.add_tokenizer_model("llama")
    writer.add_token_list([chr(FIRST_LETTER + token) for token in range(tokens)])
    writer.add_token_scores([0.0] * tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * tokens)


def _name(name: str) -> str:
    """Return GGUF's name of a weight."""
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem, kind = name.rsplit(".", 1)
    if stem in whole:
        return f"{whole[stem]}.{kind}"
    _, _, block, part = stem.split(".", 3)
    return f"blk.{block}.{LAYER[part]}.{kind}"


def _in_order_of_llama(name: str, weight: Any, config: Any) -> Any:
    """Return the rows of queries and keys in the order of Meta's rotary embedding, which rotates
    neighbours instead of halves."""
    heads = {
        "q_proj": config.num_attention_heads,
        "k_proj": config.num_key_value_heads,
    }.get(name.split(".")[-2])
    if heads is None:
        return weight.contiguous()
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.transpose(1, 2).reshape(rows, columns).contiguous()

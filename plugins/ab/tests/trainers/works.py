"""The model and the data of the trainers beside this file: tiny, random, with padding."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

LENGTH = 32


def make_model() -> Any:
    """Return a Llama of two layers with the weights of seed 0."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config)


def make_samples(count: int) -> list[dict[str, Any]]:
    """Return padded samples: the i-th has 16 + i % 16 real tokens."""
    generator = torch.Generator().manual_seed(1)
    samples = []
    for i in range(count):
        real = 16 + i % 16
        ids = torch.randint(3, 128, (LENGTH,), generator=generator)
        mask = (torch.arange(LENGTH) < real).long()
        labels = ids.masked_fill(mask == 0, -100)
        samples.append({"input_ids": ids, "attention_mask": mask, "labels": labels})
    return samples


class TuneTokenizer:
    """What torchtune's recipe asks of a tokenizer."""

    pad_id = 0


def tune_samples(tokenizer: TuneTokenizer) -> list[dict[str, list[int]]]:
    """Return samples as torchtune's recipe collates them, without padding."""
    samples = [(one["input_ids"], int(one["attention_mask"].sum())) for one in make_samples(48)]
    return [{"tokens": ids[:n].tolist(), "labels": ids[:n].tolist()} for ids, n in samples]


def make_tokenizer() -> Any:
    """Return a tokenizer of words w3 to w127."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    words = {"<pad>": 0, "<s>": 1, "</s>": 2, **{f"w{i}": i for i in range(3, 128)}}
    own = Tokenizer(WordLevel(words, unk_token="<pad>"))
    own.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=own, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def make_text(count: int, start: int = 0) -> list[str]:
    """Return texts of words: the i-th has 8 + i % 16."""
    return [" ".join(f"w{3 + (i * 7 + j) % 125}" for j in range(8 + i % 16)) for i in range(count)]

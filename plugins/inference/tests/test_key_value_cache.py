"""Bytes of the key-value cache: computed against filled by transformers, by model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accel_bench_inference.generate import Generate
from accel_bench_inference.generate_impl import Generator
from transformers import AutoConfig, AutoModelForCausalLM

from accel_bench import Options, Run
from accel_bench.machine.info import read_machine
from accel_bench.modeling.key_value_cache import expected_numbers, kept_lengths

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
}

MODELS: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
    "falcon": {"multi_query": True, "new_decoder_architecture": False},
    "falcon ": {"num_kv_heads": 2, "new_decoder_architecture": True},
    "gpt_bigcode": {"multi_query": True, "n_embd": 32, "n_layer": 2, "n_head": 4},
    "mistral": {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8},
    "gemma2": {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8},
}
"""Models by kind of attention: grouped, all heads, one head, repeated heads, windows, mixed."""


def generator(make_run: Any, kind: str, cache: str, **scenario: Any) -> Generator:
    asked = {"batch_size": 2, "prompt_tokens": 16, "new_tokens": 6, "cache": cache}
    run: Run = make_run(mode="inference", inference=asked, resources={"device": "cpu"}, **scenario)
    known = AutoConfig.for_model(kind.strip()).to_dict()
    sizes = {name: size for name, size in SMALL.items() if name in known}
    config = AutoConfig.for_model(kind.strip(), **(sizes | MODELS[kind]))
    run.model = run.unwrapped_model = AutoModelForCausalLM.from_config(config)
    return Generator(run)


def prompts() -> list[torch.Tensor]:
    return [torch.arange(16), torch.arange(1, 17)]


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_cache_holds_what_arithmetic_says_of_its_attention(
    make_run: Any, kind: str, cache: str
) -> None:
    answering = generator(make_run, kind, cache)
    answering.answer(prompts(), ())
    assert answering.cache is not None
    assert answering.cache.expected is not None
    assert answering.cache.problem == ""


def test_under_autocast_numbers_are_priced_as_they_are_kept(make_run: Any) -> None:
    answering = generator(make_run, "llama", "dynamic", train={"precision": "bf16-autocast"})
    answering.answer(prompts(), ())
    assert answering.cache is not None
    assert answering.cache.expected == answering.cache.bytes


def test_layers_keep_what_their_window_sees() -> None:
    config = AutoConfig.for_model("mistral", sliding_window=8, num_hidden_layers=2)
    assert kept_lengths(config, 20, static=False) == [7, 7]
    assert kept_lengths(config, 20, static=True) == [8, 8]
    assert kept_lengths(config, 5, static=True) == [5, 5]


def test_latent_attention_has_no_arithmetic() -> None:
    assert expected_numbers(AutoConfig.for_model("deepseek_v3"), 20, static=False) is None


def test_a_static_cache_is_refused_under_autocast(make_run: Any) -> None:
    for cache, precision, refused in (
        ("static", "bf16-autocast", True),
        ("dynamic", "bf16-autocast", False),
        ("static", "as-is", False),
    ):
        run = make_run(mode="inference", inference={"cache": cache}, train={"precision": precision})
        found = list(Generate(Options()).check_scenario(run.experiment, read_machine()))
        assert bool(found) == refused, found

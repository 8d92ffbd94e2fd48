"""Simulated steps use as much memory as torch's profiler counts in real steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from accel_bench_advise.estimates.schema import BatchShape, SimulationRequest
from accel_bench_advise.simulation.__main__ import answer
from fault_plugins.faults import plugin, source
from real_steps import experiment_of

from accel_bench.scenario.models import Stack
from accel_bench.scenario.uses import Use

from .simulated_steps import compare

CLOSE = 0.001
"""Maximum deviation of a simulated peak from the measured one, as in docs/estimate.md."""

SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 4096,
}
NO_HEAD_DIM = {key: value for key, value in SMALL.items() if key != "head_dim"}
EXPERTS = {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 2}
GPT2 = {"n_layer": 2, "n_embd": 256, "n_head": 4, "n_inner": 512, "vocab_size": 4096}
OPT = {
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "ffn_dim": 512,
    "num_attention_heads": 4,
    "word_embed_proj_dim": 256,
    "vocab_size": 4096,
}
LORA = {"use": "lora", "r": 8, "target_modules": ["q_proj", "v_proj"]}
ALL_LINEAR = {"use": "lora", "r": 16, "target_modules": "all-linear"}
BF16 = {"precision": "bf16-autocast"}
AGAIN = {"gradient_checkpointing": True}


def work(
    model: str,
    overrides: dict[str, Any] = SMALL,
    batch: tuple[int, int] = (4, 256),
    dtype: str = "float32",
    attention: str = "sdpa",
    **rest: Any,
) -> dict[str, Any]:
    """Return the work of a configuration: a model at a batch, and the slots that differ."""
    samples, length = batch
    train = {"micro_batch_size": samples, **rest.pop("train", {})}
    model_use = {"id": model, "overrides": overrides, "dtype": dtype, "attention": attention}
    return {
        "model": model_use,
        "data": {"use": "synthetic", "sequence_length": length},
        "train": train,
        **rest,
    }


DEFAULT = {
    "mistral, LoRA, bf16 autocast": work("mistral-7b", adapter=LORA, train=BF16),
    "qwen, checkpointed": work("qwen2.5-7b", NO_HEAD_DIM, train=AGAIN),
    "gpt2, SGD": work("gpt2", GPT2, optimizer="sgd"),
    "llama, accumulated, clipped": work(
        "llama-3-8b", train={"gradient_accumulation": 2, "max_grad_norm": 1.0}
    ),
}
"""Fast configurations that differ most."""

MORE = {
    "mixtral, bfloat16": work("mixtral-8x7b", EXPERTS, dtype="bfloat16"),
    "llama, full, float32, AdamW": work("llama-2-7b"),
    "llama, batch 1, length 1,024": work("llama-2-7b", batch=(1, 1024)),
    "llama, batch 16, length 64": work("llama-2-7b", batch=(16, 64)),
    "llama, batch 7, length 200": work("llama-3-8b", batch=(7, 200)),
    "llama, bf16 autocast": work("llama-2-7b", train=BF16),
    "llama, bfloat16": work("llama-2-7b", dtype="bfloat16"),
    "llama, bf16 autocast, checkpointed": work("llama-2-7b", train={**BF16, **AGAIN}),
    "llama, eager attention": work("llama-2-7b", attention="eager"),
    "llama, LoRA everywhere": work("llama-2-7b", adapter=ALL_LINEAR),
    "llama, LoRA, checkpointed": work("llama-2-7b", adapter=LORA, train=AGAIN),
    "llama, LoRA, bfloat16 base": work("llama-3-8b", adapter=LORA, dtype="bfloat16"),
    "llama, SGD with momentum": work("llama-2-7b", optimizer={"use": "sgd", "momentum": 0.9}),
    "llama, adafactor": work("llama-2-7b", optimizer="adafactor"),
    "llama, lists of tensors": work("llama-2-7b", optimizer={"use": "adamw", "foreach": True}),
    "llama, optimizer in backward": work(
        "llama-2-7b", optimizer={"use": "adamw", "optimizer_in_backward": True}
    ),
    "mistral, full": work("mistral-7b"),
    "mistral, length 512, checkpointed": work("mistral-7b-v0.3", batch=(4, 512), train=AGAIN),
    "qwen, bf16 autocast, SGD": work("qwen2.5-7b", NO_HEAD_DIM, optimizer="sgd", train=BF16),
    "qwen, LoRA, accumulated": work(
        "qwen2.5-7b", NO_HEAD_DIM, adapter=LORA, train={"gradient_accumulation": 3}
    ),
    "granite, full": work("granite-3-8b", NO_HEAD_DIM),
    "granite, LoRA, bf16 autocast": work("granite-3-8b", NO_HEAD_DIM, adapter=LORA, train=BF16),
    "mixtral, float32": work("mixtral-8x7b", EXPERTS),
    "mixtral, checkpointed, SGD": work("mixtral-8x7b", EXPERTS, optimizer="sgd", train=AGAIN),
    "gpt2, AdamW, length 128": work("gpt2", GPT2, batch=(8, 128)),
    "opt, full": work("opt-125m", OPT),
}
"""Remaining configurations of the thirty."""


@pytest.mark.parametrize("name", DEFAULT)
def test_a_simulated_peak_is_within_a_thousandth_of_the_measured_one(
    name: str, tmp_path: Path
) -> None:
    compare(DEFAULT[name], tmp_path, CLOSE)


@pytest.mark.release
@pytest.mark.parametrize("name", MORE)
def test_so_is_that_of_the_rest_of_thirty_configurations(name: str, tmp_path: Path) -> None:
    compare(MORE[name], tmp_path, CLOSE)


def test_there_are_thirty_configurations() -> None:
    assert len({**DEFAULT, **MORE}) == 30


def test_a_plugin_that_reads_values_is_named_in_a_sentence(tmp_path: Path) -> None:
    text = source(acting="float(next(run.model.parameters()).sum())")
    with plugin(tmp_path, text) as name:
        experiment = experiment_of({"model": {"id": "tiny-llama-cpu"}})
        stack = Stack(name=name, uses=(Use(use=name),))
        experiment = experiment.model_copy(update={"stack": stack})
        shape = BatchShape(micro_batch_size=1, sequence_length=8)
        request = SimulationRequest(experiment=experiment, shape=shape, device="cpu")
        problem = answer(request.model_dump_json()).problem
    assert "plugin 'it' (accel-bench-" in problem
    assert "in accelerate_model, reads values of tensors" in problem
    assert problem.endswith("measure it with `accel-bench run`")
    assert "Exception" not in problem

"""Samples of unequal lengths, a run around them, and tiny models to train on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from accel_bench import Run, testing
from accel_bench.modeling.data.token_batches import TokenDataset

LENGTHS = (9, 3, 14, 2, 7, 11, 5, 16)
"""Lengths of the samples in `dataset`; the longest is the sequence length."""

VOCABULARY = 64


@pytest.fixture
def dataset() -> TokenDataset:
    """Eight samples of unequal lengths, whose tokens all differ from padding."""
    lengths = np.array(LENGTHS)
    tokens = np.random.default_rng(0).integers(1, VOCABULARY, lengths.sum(), dtype=np.uint32)
    return TokenDataset(
        tokens=tokens,
        starts=lengths.cumsum() - lengths,
        lengths=lengths,
        sequence_length=16,
        vocab_size=VOCABULARY,
        pad_token_id=0,
        fingerprint="x",
    )


@pytest.fixture
def make_run(tmp_path: Path, dataset: TokenDataset) -> Callable[..., Run]:
    """Return `make_run(rank=0, ranks=1, **scenario)`: a CPU run with that dataset."""

    def build(rank: int = 0, ranks: int = 1, model: Any = None, **scenario: Any) -> Run:
        resources = {"device": "cpu", "devices": ranks}
        work = {"data": {"sequence_length": 16}, "resources": resources, **scenario}
        return testing.make_run(
            tmp_path, work, rank=rank, world_size=ranks, dataset=dataset, model=model
        )

    return build


@pytest.fixture
def tiny_model() -> Callable[..., Any]:
    """Return `tiny_model(model_type, attention, **configuration)`."""
    return build_model


@pytest.fixture
def step() -> Callable[[Any, list[Any]], tuple[float, torch.Tensor]]:
    """Return `step(model, micro_batches)`: the loss of the step, and its gradients."""
    return loss_and_gradients


def build_model(model_type: str = "llama", attention: str = "sdpa", **config: Any) -> Any:
    """A causal model of two small layers, with large enough weights."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    torch.manual_seed(0)
    built = CONFIG_MAPPING[model_type](**{**sizes(model_type), "use_cache": False, **config})
    model = AutoModelForCausalLM.from_config(built, attn_implementation=attention).train()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
    return model


def sizes(model_type: str) -> dict[str, Any]:
    """Small values for the keys that a configuration class has, without dropout."""
    from transformers import CONFIG_MAPPING

    small = {
        "attn_pdrop": 0.0,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "dropout": 0.0,
        "embd_pdrop": 0.0,
        "eos_token_id": 2,
        "ffn_dim": 64,
        "head_dim": 8,
        "hidden_size": 32,
        "input_jitter_noise": 0.0,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
        "moe_intermediate_size": 32,
        "n_embd": 32,
        "n_head": 4,
        "n_inner": 64,
        "n_layer": 2,
        "n_positions": 128,
        "num_attention_heads": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "pad_token_id": 0,
        "query_pre_attn_scalar": 8,
        "resid_pdrop": 0.0,
        "router_jitter_noise": 0.0,
        "shared_expert_intermediate_size": 32,
        "shared_intermediate_size": 32,
        "sliding_window": 4,
        "use_sliding_window": True,
        "max_window_layers": 1,
        "vocab_size": VOCABULARY,
        "word_embed_proj_dim": 32,
    }
    known = CONFIG_MAPPING[model_type]().to_dict()
    return {key: value for key, value in small.items() if key in known}


def loss_and_gradients(model: Any, batches: list[Any]) -> tuple[float, torch.Tensor]:
    """The loss of a step over some micro-batches, and all gradients as one vector."""
    model.zero_grad()
    loss = 0.0
    for batch in batches:
        share = model(**batch.inputs, num_items_in_batch=batch.supervised_in_step).loss
        share.backward()
        loss += share.item()
    found = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return loss, torch.cat(found)

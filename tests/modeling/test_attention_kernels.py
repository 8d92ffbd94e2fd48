"""Attention kernels are read from the graph that a forward pass leaves behind."""

from __future__ import annotations

import pytest
import torch
from flop_counting import catalog_model

from accel_bench.modeling.attention_kernels import attention_kernels

SMALL = {"n_layer": 3, "n_embd": 64, "n_head": 4, "vocab_size": 512, "attn_pdrop": 0.0}


def kernels(attention: str, checkpointing: bool = False) -> dict[str, int]:
    model = catalog_model("gpt2", SMALL, device="cpu", checkpointing=checkpointing)
    model.config._attn_implementation = attention
    tokens = torch.arange(16)[None]
    return attention_kernels(model(input_ids=tokens, labels=tokens).loss)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_each_layer_has_its_kernel_checkpointed_or_not(checkpointing: bool) -> None:
    found = kernels("sdpa", checkpointing)
    assert found == {"ScaledDotProductFlashAttentionForCpu": 3}


def test_the_softmax_of_the_loss_is_none_of_attention() -> None:
    assert kernels("eager") == {"Softmax": 3}


def test_a_tensor_without_a_graph_shows_nothing() -> None:
    assert attention_kernels(torch.zeros(1)) == {}

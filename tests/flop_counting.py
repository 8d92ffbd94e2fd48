"""Models on the meta device under torch's own FLOP counter, and what our formulas say of them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accel_bench_huggingface.lora import LoraOptions
from accel_bench_huggingface.lora_impl import add_adapter
from torch.utils.flop_counter import FlopCounterMode

from accel_bench import Run
from accel_bench.modeling.checkpointing import enable_gradient_checkpointing
from accel_bench.modeling.loading import build_config
from accel_bench.modeling.random_weights import random_model
from accel_bench.scenario.uses import ModelUse
from accel_bench.testing import make_run

GPT2 = {"n_layer": 3, "n_embd": 64, "n_head": 4, "vocab_size": 512}
"""Overrides that make GPT-2 small."""

ROTARY = {
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Overrides that make llama and its relatives small."""


def catalog_model(
    name: str,
    overrides: dict[str, Any] | None = None,
    *,
    lora: dict[str, Any] | None = None,
    trained: Sequence[str] | None = None,
    checkpointing: bool = False,
    device: str = "meta",
) -> Any:
    """A catalog model, in train mode, with eager attention.

    `lora` are options of the adapter; `trained` are beginnings of the names of the parameters that
    train, all where it is None.
    """
    config = build_config(ModelUse(id=name, overrides=overrides or {}))
    # The other implementations of experts ask tensors for values, which meta tensors do not have.
    config._experts_implementation = "batched_mm"
    model = random_model(config, torch.float32, device, 0, attention="eager")[0].train()
    if lora is not None:
        model = add_adapter(model, LoraOptions.model_validate_json(json.dumps(lora)), seed=0)
    if trained is not None:
        for parameter_name, parameter in model.named_parameters():
            parameter.requires_grad_(parameter_name.startswith(tuple(trained)))
    if checkpointing:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            enable_gradient_checkpointing(model)
    return model


def counted_flops(model: Any, length: int) -> float:
    """FLOPs for a token that torch counts in one forward and backward pass of one sequence.

    All scores are counted, causal or not. The mask has four dimensions, since making one out of
    less needs values.
    """
    device = next(model.parameters()).device
    tokens = torch.zeros(1, length, dtype=torch.long, device=device)
    inputs = {
        "input_ids": tokens,
        "labels": tokens,
        "attention_mask": torch.zeros(1, 1, length, length, device=device),
        # Else OPT counts positions by a mask of two dimensions.
        "position_ids": torch.arange(length, device=device)[None],
    }
    with FlopCounterMode(display=False) as counter:
        model(**inputs).loss.backward()
    return counter.get_total_flops() / length


def run_of(model: Any, folder: Path, /, **scenario: Any) -> Run:
    """A run that trains a model."""
    return make_run(folder, scenario, model=model)

"""A checkpoint quantized by bitsandbytes trains under LoRA like any other model."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

from accel_bench.testing import run_scenario

SIZES = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def quantized_checkpoint(folder: Path) -> Path:
    """A tiny llama loaded in 4 bits and saved by `save_pretrained`."""
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(folder / "full")
    settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    packed = AutoModelForCausalLM.from_pretrained(folder / "full", quantization_config=settings)
    packed.save_pretrained(folder / "packed")
    return folder / "packed"


def test_a_checkpoint_in_4_bits_trains_under_lora(tmp_path: Path) -> None:
    scenario = tmp_path / "packed.yaml"
    work = {
        "model": {"id": str(quantized_checkpoint(tmp_path)), "weights": "pretrained"},
        "adapter": {"use": "lora", "r": 4, "target_modules": ["q_proj", "v_proj"]},
        "data": {"vocab_size": 256, "sequence_length": 16, "samples": 16},
        "resources": {"device": "cpu"},
        "measure": {"warmup": 1, "steps": 3, "rounds": 1, "phase_steps": 0},
    }
    scenario.write_text(json.dumps(work))
    (result,) = run_scenario(scenario).values()
    assert (result.status, result.reasons) == ("ok", ())
    (rank,) = result.ranks
    assert rank.effective is not None
    assert rank.effective.weight_dtypes["uint8"] > 0
    assert "uint8" not in rank.effective.trained_dtypes

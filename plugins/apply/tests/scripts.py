"""Bare training scripts of the tests, and the same work as a run measures it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

import accel_bench
from accel_bench.testing import run_scenario

STEPS = 5

TINY: dict[str, Any] = {
    "name": "script",
    "model": {
        "id": "tiny-llama-cpu",
        "overrides": {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96},
    },
    "data": {"use": "synthetic", "sequence_length": 32, "lengths": {"median": 20}},
    "train": {"micro_batch_size": 2, "learning_rate": 1e-2},
    "resources": {"device": "cpu", "threads": 1},
    "measure": {"warmup": 2, "steps": 3, "rounds": 1, "phase_steps": 0},
}
"""Work that is trained in a moment."""


def tiny(stacks: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Return that work with a baseline, other stacks and other settings."""
    merged = {key: {**TINY.get(key, {}), **value} for key, value in changes.items()}
    return {**TINY, **merged, "stacks": {"baseline": [], **stacks}}


def measured_losses(scenario: Mapping[str, Any], stack: str, folder: Path) -> list[float]:
    """Return the losses of a stack's steps, warm-up included, as a run measures them."""
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(dict(scenario)), encoding="utf8")
    result = run_scenario(path, only=[stack])[stack]
    assert result.status.completed, result.reasons
    window = result.ranks[0].window
    assert window is not None
    return [float(one.loss or 0) for one in (*window.warmup, *window.samples)]


def plain_model(scenario: Mapping[str, Any]) -> Any:
    """Return the work's model as a script has it, with the weights of the runs."""
    with accel_bench.accelerate(scenario=scenario) as accelerated:
        return accelerated.model


def script_losses(model: Any, stack: str | None, scenario: Mapping[str, Any]) -> list[float]:
    """Return the losses of a script's own loop over the scenario's batches."""
    losses = []
    torch.manual_seed(0)
    with accel_bench.accelerate(model, stack, scenario=scenario) as accelerated:
        optimizer, batches = accelerated.optimizer(), accelerated.batches()
        accumulation = accelerated.experiment.scenario.train.gradient_accumulation
        for step in range(STEPS):
            total = 0.0
            for _ in range(accumulation):
                batch = next(batches)
                with accelerated.autocast():
                    loss = accelerated.loss(
                        accelerated.model, batch.inputs, batch.supervised_in_step
                    )
                loss.backward()
                total += loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(total))
            if step == 0:
                accelerated.check()
    return losses


def small_llama(**changes: int) -> Any:
    """Return a llama of two small layers with random weights."""
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **{**sizes, **heads, **changes}))

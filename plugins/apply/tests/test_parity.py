"""A bare script under `accelerate` has the losses of the same stack's runs, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import accel_bench

from .scripts import measured_losses, plain_model, script_losses, tiny

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

STACKS: dict[str, Any] = {
    "checkpointing": {"set": {"train.gradient_checkpointing": True}},
    "selective": [{"use": "activation-checkpointing", "policy": "selective"}],
    "math": [{"use": "attention", "backends": ["math"]}],
    "fused-optimizer": {"set": {"optimizer.fused": True}},
    "in-backward": {"set": {"optimizer.optimizer_in_backward": True}},
    "autocast": {"set": {"train.precision": "bf16-autocast"}},
    "accumulated": {"set": {"train.micro_batch_size": 1, "train.gradient_accumulation": 2}},
    "padding-free": ["padding-free"],
    "multipack": {
        "set": {"train.micro_batch_size": 1, "train.gradient_accumulation": 2},
        "use": [{"use": "padding-free", "sampler": "multipack"}],
    },
    "eager-graphs": [{"use": "torch-compile", "backend": "aot_eager"}],
}


OF_THE_BOX = ("selective", "math")
"""Stacks of that list with plugins of other folders of the box."""

BOXED = [pytest.param(one, marks=pytest.mark.box) for one in OF_THE_BOX]


@pytest.mark.parametrize("given", [False, True], ids=["loaded", "given"])
@pytest.mark.parametrize(
    "stack", ["baseline", *(one for one in STACKS if one not in OF_THE_BOX), *BOXED]
)
def test_a_script_has_the_losses_of_a_run(stack: str, given: bool, tmp_path: Path) -> None:
    scenario = tiny(STACKS)
    model = plain_model(scenario) if given else None
    assert script_losses(model, stack, scenario) == measured_losses(scenario, stack, tmp_path)


def test_a_script_trains_adapters_as_a_run(tmp_path: Path) -> None:
    scenario = tiny({}, adapter={"use": "lora", "r": 4})
    for model in (None, plain_model(tiny({}))):
        assert script_losses(model, None, scenario) == measured_losses(
            scenario, "baseline", tmp_path
        )


def test_a_script_trains_experts_as_a_run(tmp_path: Path) -> None:
    small = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 32}
    small |= {"num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": 2048}
    small |= {"num_attention_heads": 4, "num_key_value_heads": 4}
    model = {"id": "granite-3-1b-a400m", "overrides": small}
    scenario = tiny({"batched": [{"use": "moe", "experts": "batched_mm"}]}, model=model)
    expected = measured_losses(scenario, "batched", tmp_path)
    assert script_losses(None, "batched", scenario) == expected


@pytest.mark.release
def test_a_compiled_model_has_the_losses_of_a_run(tmp_path: Path) -> None:
    scenario = tiny({"compiled": ["torch-compile"]})
    model = plain_model(scenario)
    assert script_losses(model, "compiled", scenario) == measured_losses(
        scenario, "compiled", tmp_path
    )


@pytest.mark.release
def test_a_script_has_the_losses_that_the_program_stores(tmp_path: Path) -> None:
    scenario = tiny({"padding-free": ["padding-free"]})
    done = accel_bench.run(scenario, stacks=["padding-free"], results=tmp_path, timeout=300)
    (result,) = [one for one in done if one.experiment.stack.name == "padding-free"]
    window = result.ranks[0].window
    assert window is not None
    stored = [one.loss for one in (*window.warmup, *window.samples)]
    assert script_losses(plain_model(scenario), "padding-free", scenario) == stored

"""Stacks of distributions that `make quantized` installs, on a model that they load themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import accel_bench
from accel_bench.documents.presets import find_presets
from accel_bench.errors import AccelBenchError

from .scripts import measured_losses, plain_model, script_losses, small_llama, tiny

STACKS = {
    "nf4": {"dtype": "float32"},
    "int8-torchao": {"dtype": "float32"},
    "gptq": {"dtype": "bfloat16"},
    "adamw-8bit": {"dtype": "float32"},
}
"""Stacks that quantize weights or the optimizer's state, with settings of the model."""

FUSED = ("fused-kernels", "fused-loss", "fused-lora")

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        not {*STACKS, *FUSED} <= find_presets("stacks").keys(),
        reason="the distributions of `make quantized` are not installed here",
    ),
]


@pytest.fixture(autouse=True)
def packed_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make GPTQModel pack in Python, since compiling its kernel takes most of a minute."""
    monkeypatch.setenv("GPTQMODEL_DISABLE_PACK_EXT", "1")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A model's folder with weights, as `save_pretrained` writes it."""
    model = small_llama(vocab_size=2048, hidden_size=128, intermediate_size=256)
    model.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def adapted(model: dict[str, Any], stack: str) -> dict[str, Any]:
    """Return the work with that model under an adapter, and a stack."""
    scenario = tiny({stack: stack}, adapter={"use": "lora", "r": 4})
    return {**scenario, "model": model}


@pytest.mark.parametrize("stack", STACKS)
def test_a_script_has_the_losses_of_a_run_on_weights_from_a_folder(
    stack: str, folder: str, tmp_path: Path
) -> None:
    scenario = adapted({"id": folder, "weights": "pretrained", **STACKS[stack]}, stack)
    if stack == "gptq":  # packed without data, as random weights are
        scenario["model"]["weights"] = "random"
    model = folder if scenario["model"]["weights"] == "pretrained" else None
    assert script_losses(model, stack, scenario) == measured_losses(scenario, stack, tmp_path)


@pytest.mark.parametrize("stack", FUSED)
def test_a_script_has_the_losses_of_a_run_with_fused_kernels(stack: str, tmp_path: Path) -> None:
    scenario = tiny({stack: stack}, adapter={"use": "lora", "r": 4})
    expected = measured_losses(scenario, stack, tmp_path)
    for model in (None, plain_model(tiny({}))):
        assert script_losses(model, stack, scenario) == expected


@pytest.mark.release
def test_fused_kernels_that_are_compiled_have_the_losses_of_a_run(tmp_path: Path) -> None:
    stack = "fused-kernels+torch-compile"
    scenario = tiny({stack: {"use": stack.split("+")}})
    model = plain_model(scenario)
    assert script_losses(model, stack, scenario) == measured_losses(scenario, stack, tmp_path)


def test_a_calibration_says_that_it_needs_data(folder: str) -> None:
    with pytest.raises(AccelBenchError, match="is that of `scenario`, which names none"):
        accel_bench.accelerate(folder, "gptq-calibrated", dtype="bfloat16")


def test_a_calibration_takes_the_data_of_the_scenario(folder: str) -> None:
    data = {"use": "synthetic", "sequence_length": 32, "samples": 128}
    scenario = {"name": "calibrated", "data": data}
    overrides = {"adapter.use": "lora"}
    with accel_bench.accelerate(
        folder, "gptq-calibrated", scenario=scenario, dtype="bfloat16", overrides=overrides
    ) as accelerated:
        packed = {module.__class__.__name__ for module in accelerated.model.modules()}
        assert any("Linear" in name and name != "Linear" for name in packed)
    assert torch.get_float32_matmul_precision() == "highest"

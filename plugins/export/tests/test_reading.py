"""Other programs' configurations as scenarios, and what is left out of them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli.program import call

from accel_bench.planning.resolve import resolve
from accel_bench.scenario.find import read_draft
from accel_bench.scenario.models import Scenario

pytestmark = pytest.mark.box

WORK = """
name: chats
model: {id: org/model, weights: pretrained}
adapter: {use: lora, r: 8, alpha: 32, dropout: 0.1, target_modules: [q_proj, v_proj]}
data: {use: instructions, source: path, path: chats.jsonl, messages: messages, sequence_length: 128}
train:
  micro_batch_size: 4
  gradient_accumulation: 2
  learning_rate: 2e-4
  precision: bf16-autocast
  max_grad_norm: 0.5
  seed: 3
optimizer: {use: adamw, weight_decay: 0.1, betas: [0.9, 0.95]}
resources: {device: cpu}
stacks: {baseline: [], compiled: [torch-compile]}
measure: {steps: 7}
"""

UNKNOWN: dict[str, set[str]] = {
    "trl": {"data.messages"},
    "axolotl": {"data.seed", "model.dtype"},  # it loads weights in bfloat16 under `bf16`
    "llama-factory": {"data.source", "data.path", "data.messages"},
}
"""Keys of the scenario that a program's file cannot say."""


def imported(file: Path, folder: Path) -> tuple[Scenario, list[Any], str]:
    """Scenario and plugins of the stack of an imported file, and what stands on stderr."""
    done = call("scenarios", "import", str(file), "-o", str(folder))
    assert done.code == 0, done.err
    found = resolve(read_draft(folder / f"{file.stem}.yaml"))
    point = list(found.points("cpu"))[-1]
    return point.scenario, [use.model_dump(mode="json") for use in point.stack.uses], done.err


def said(scenario: Scenario) -> dict[str, Any]:
    from accel_bench.scenario.draft import dotted

    sections = ("model", "adapter", "data", "optimizer", "train", "task")
    found = dict(dotted(scenario.model_dump(mode="json")))
    kept = {key: one for key, one in found.items() if key.partition(".")[0] in sections}
    return kept | {"measure.steps": scenario.measure.steps}


@pytest.mark.parametrize("program", ["trl", "axolotl", "llama-factory"])
def test_export_then_import_gives_the_same_scenario_for_what_both_know(
    program: str, tmp_path: Path
) -> None:
    source = tmp_path / "chats.yaml"
    source.write_text(WORK)
    file = tmp_path / f"{program}.yaml"
    command = ("export", "compiled", "--to", program, "--scenario", str(source), "-o", str(file))
    assert call(*command).code == 0
    scenario, uses, _ = imported(file, tmp_path / "ours")
    written = list(resolve(read_draft(source)).points("cpu"))[-1]
    wanted, found = said(written.scenario), said(scenario)
    unknown = UNKNOWN[program]
    for key, value in wanted.items():
        if key not in unknown:
            assert found.get(key) == value, key
    assert [use["use"] for use in uses] == ["torch-compile"]


AXOLOTL = {
    "base_model": "org/model",
    "datasets": [{"path": "org/data", "type": "alpaca"}],
    "adapter": "qlora",
    "sequence_len": 2048,
    "sample_packing": True,
    "lora_r": 32,
    "lora_alpha": 16,
    "lora_target_linear": True,
    "micro_batch_size": 2,
    "optimizer": "adamw_torch",
    "lr_scheduler": "cosine",
    "learning_rate": 2e-4,
    "bf16": True,
    "num_epochs": 3,
    "val_set_size": 0.1,
    "wandb_project": None,
}


def test_what_an_axolotl_file_holds_beside_a_scenario_is_listed_with_the_reason(
    tmp_path: Path,
) -> None:
    file = tmp_path / "ax.yaml"
    file.write_text(yaml.safe_dump(AXOLOTL))
    scenario, _, told = imported(file, tmp_path / "ours")
    assert (scenario.model.id, scenario.model.weights) == ("org/model", "pretrained")
    options = scenario.adapter.options
    assert (options["r"], options["alpha"], options["target_modules"]) == (32, 16, "all-linear")
    assert (scenario.data.use, scenario.data.sequence_length) == ("instructions", 2048)
    assert "left out: datasets, val_set_size (no installed plugin is its counterpart)" in told
    assert "left out: lr_scheduler (here it is constant)" in told
    assert "wandb_project" not in told


def test_saved_arguments_are_read_as_json(tmp_path: Path) -> None:
    file = tmp_path / "training_args.json"
    saved = {"per_device_train_batch_size": 4, "learning_rate": 1e-4, "bf16": True, "max_steps": -1,
             "gradient_accumulation_steps": 8, "optim": "adamw_torch_fused", "torch_compile": True,
             "torch_compile_backend": "inductor", "lr_scheduler_type": "linear"}  # fmt: skip
    file.write_text(json.dumps(saved))
    scenario, uses, told = imported(file, tmp_path / "ours")
    assert scenario.train.micro_batch_size == 4 and scenario.train.gradient_accumulation == 8
    assert scenario.train.precision == "bf16-autocast"
    assert scenario.optimizer.options["fused"] is True
    assert uses[0]["use"] == "torch-compile"
    assert "lr_scheduler_type (here it is constant)" in told


def test_a_pickle_is_refused_and_not_read(tmp_path: Path) -> None:
    file = tmp_path / "training_args.bin"
    ran = tmp_path / "ran"

    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (ran,))

    file.write_bytes(pickle.dumps(Bomb()))
    done = call("scenarios", "import", str(file), "-o", str(tmp_path / "ours"))
    assert done.code == 2
    assert "is a pickle" in done.err and "to_json_string" in done.err
    assert not ran.exists()


def test_an_adapter_is_read_from_its_configuration(tmp_path: Path) -> None:
    file = tmp_path / "adapter_config.json"
    saved = {"peft_type": "LORA", "base_model_name_or_path": "org/model", "r": 4, "bias": "none"}
    saved |= {"lora_alpha": 8, "lora_dropout": 0.1, "target_modules": ["q"], "use_dora": True}
    file.write_text(json.dumps(saved))
    scenario, _, told = imported(file, tmp_path / "ours")
    assert scenario.model.id == "org/model"
    lora = {"r": 4, "alpha": 8, "dropout": 0.1, "target_modules": ["q"]}
    assert scenario.adapter.options == lora
    assert "left out: use_dora" in told and "bias" not in told


def test_many_steps_are_no_steps_of_a_benchmark(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(yaml.safe_dump({"model_name_or_path": "org/model", "max_steps": 50_000}))
    scenario, _, told = imported(file, tmp_path / "ours")
    assert scenario.measure.steps == 20
    assert "max_steps" in told

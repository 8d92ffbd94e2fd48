"""Exported files, read by the programs' own parsers and trained with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from cli.program import call

pytestmark = pytest.mark.box

SCENARIO = """
name: counting
model: {{id: {model}, weights: pretrained}}
data: {{use: instructions, source: path, path: {data}, answer: completion, sequence_length: 64}}
train: {{micro_batch_size: 2, gradient_accumulation: 2, learning_rate: 5e-4, max_grad_norm: 1.0}}
resources: {{device: cpu}}
measure: {{steps: 2}}
"""


READ_BACK = (
    "learning_rate",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "max_length",
    "pad_to_multiple_of",
    "max_steps",
    "gradient_checkpointing",
)
"""Settings that TRL's own parser has read as they stand in the file."""


@pytest.fixture(scope="module")
def made(ask_trainers: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Paths of a model, of rows, and of a scenario of both."""
    folder = tmp_path_factory.mktemp("made")
    paths: dict[str, str] = ask_trainers("make_model", folder=str(folder))
    scenario = folder / "counting.yaml"
    scenario.write_text(SCENARIO.format(**paths))
    return {**paths, "scenario": str(scenario)}


def exported(to: str, stack: str, made: dict[str, str], folder: Path, *more: str) -> Path:
    file = folder / f"{to}.yaml"
    command = ("export", stack, "--to", to, "--scenario", made["scenario"], "-o", str(file), *more)
    assert call(*command).code == 0
    return file


def test_trl_trains_two_steps_with_an_exported_file(
    made: dict[str, str], ask_trainers: Any, tmp_path: Path
) -> None:
    file = exported("trl", "activation-checkpointing", made, tmp_path)
    found = ask_trainers("train", program="trl", file=str(file))
    assert len(found["losses"]) == 2
    asked = yaml.safe_load(file.read_text())
    for key in READ_BACK:
        assert found[key] == asked[key]
    assert found["gradient_checkpointing"] is True


@pytest.mark.long
def test_trl_keeps_flattened_sequences_apart_under_sdpa(
    made: dict[str, str], ask_trainers: Any, tmp_path: Path
) -> None:
    losses = {}
    for stack in ("baseline", "padding-free"):
        (folder := tmp_path / stack).mkdir()
        file = exported("trl", stack, made, folder)
        found = ask_trainers("train", program="trl", file=str(file))
        losses[found["padding_free"]] = found["losses"]
        assert found["attn_implementation"] == "sdpa"
    assert losses[True] == pytest.approx(losses[False], rel=1e-4)


def test_trainer_trains_two_steps_with_an_exported_file(
    made: dict[str, str], ask_trainers: Any, tmp_path: Path
) -> None:
    file = exported("trainer", "optimizer-fused", made, tmp_path)
    found = ask_trainers("train", program="trainer", file=str(file), model=made["model"])
    assert len(found["losses"]) == 2
    assert "FUSED" in found["optim"].upper()


def test_a_loop_trains_two_steps_under_accelerate_launch_with_an_exported_file(
    made: dict[str, str], ask_trainers: Any, tmp_path: Path
) -> None:
    half = ("--set", "train.precision=bf16-autocast")
    file = exported("accelerate", "optimizer-fused", made, tmp_path, *half)
    found = ask_trainers("train", program="accelerate", file=str(file), model=made["model"])
    assert len(found["losses"]) == 2 and found["losses"][1] < found["losses"][0]
    assert (found["mixed_precision"], found["device"]) == ("bf16", "cpu")

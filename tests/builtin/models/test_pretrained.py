"""Real weights from a directory as `save_pretrained` leaves it: in shards, tied, or quantized."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from accel_bench import Run, load_base_model, read_machine
from accel_bench.errors import ScenarioError, install_command
from accel_bench.modeling import loading
from accel_bench.planning.plan import PlanRequest, make_plan
from accel_bench.scenario.find import read_draft
from accel_bench.testing import run_scenario

MakeRun = Callable[..., Run]

LLAMA = {
    "id": "tiny-llama-cpu",
    "overrides": {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64},
}
GPT2 = {
    "id": "gpt2",
    "overrides": {"n_layer": 1, "n_embd": 32, "n_head": 4, "vocab_size": 2048},
}

SHARD = "150KB"
"""Smaller than an embedding, so that weights are in several files."""


def save(make_run: MakeRun, folder: Path, model: dict[str, Any], **how: Any) -> Any:
    """Save a model with random weights, and return it."""
    made = load_base_model(make_run(model=model))
    made.save_pretrained(folder, **how)
    return made


def test_weights_in_several_files_are_all_loaded(make_run: MakeRun, tmp_path: Path) -> None:
    saved = save(make_run, tmp_path, LLAMA, max_shard_size=SHARD)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert not (tmp_path / "model.safetensors").exists()
    run = make_run(model={"id": str(tmp_path), "weights": "pretrained"}, train={"seed": 9})
    loaded = load_base_model(run)
    mine, theirs = dict(loaded.named_parameters()), dict(saved.named_parameters())
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_missing_file_of_several_is_named(make_run: MakeRun, tmp_path: Path) -> None:
    save(make_run, tmp_path, LLAMA, max_shard_size=SHARD)
    lost = sorted(tmp_path.glob("*.safetensors"))[1]
    lost.unlink()
    run = make_run(model={"id": str(tmp_path), "weights": "pretrained"})
    told = rf"cannot be loaded: .*{lost.name}; complete the files of that directory"
    with pytest.raises(ScenarioError, match=told):
        load_base_model(run)


def test_tied_weights_are_one_tensor_again(make_run: MakeRun, tmp_path: Path) -> None:
    saved = save(make_run, tmp_path, GPT2)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    run = make_run(model={"id": str(tmp_path), "weights": "pretrained"}, train={"seed": 9})
    loaded = load_base_model(run)
    assert loaded.lm_head.weight is loaded.transformer.wte.weight
    assert torch.equal(loaded.lm_head.weight, saved.lm_head.weight)
    assert loading.count_parameters(loaded) == loading.count_parameters(saved)


def test_a_stack_trains_what_was_saved_in_shards_with_tied_weights(
    make_run: MakeRun, tmp_path: Path
) -> None:
    save(make_run, tmp_path / "saved", GPT2, max_shard_size=SHARD)
    scenario = tmp_path / "saved.yaml"
    work = {
        "model": {"id": str(tmp_path / "saved"), "weights": "pretrained"},
        "data": {"sequence_length": 16, "samples": 16},
        "resources": {"device": "cpu"},
        "measure": {"warmup": 1, "steps": 3, "rounds": 1, "phase_steps": 0},
    }
    scenario.write_text(json.dumps(work))
    (result,) = run_scenario(scenario).values()
    assert (result.status, result.reasons) == ("ok", ())


@pytest.mark.parametrize(
    ("method", "extra"), [("gptq", "gptq"), ("bitsandbytes", "bnb"), ("torchao", "torchao")]
)
def test_a_quantized_checkpoint_says_what_reads_it(
    make_run: MakeRun, tmp_path: Path, method: str, extra: str
) -> None:
    saved = tmp_path / "saved"
    save(make_run, saved, LLAMA)
    config = json.loads((saved / "config.json").read_text())
    quantized = {"quant_method": method, "bits": 4, "load_in_4bit": True}
    (saved / "config.json").write_text(json.dumps({**config, "quantization_config": quantized}))
    scenario = tmp_path / "saved.yaml"
    model = {"id": str(saved), "weights": "pretrained"}
    scenario.write_text(json.dumps({"model": model, "resources": {"device": "cpu"}}))
    (planned,) = make_plan(read_draft(scenario), read_machine(), PlanRequest()).planned
    (reason,) = planned.skipped
    assert f"is a checkpoint that is quantized by {method}; the plugin" in reason
    assert install_command(extra) in reason


def test_a_checkpoint_whose_library_is_missing_ends_in_a_sentence(
    make_run: MakeRun, tmp_path: Path
) -> None:
    save(make_run, tmp_path, LLAMA)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    run = make_run(model={"id": str(tmp_path), "weights": "pretrained"})
    with pytest.raises(
        ScenarioError, match=r"the weights of model\.id .* cannot be loaded: .*bitsandbytes"
    ):
        load_base_model(run)

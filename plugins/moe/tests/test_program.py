"""The plugin in the product: held against the contract, and its samples carried out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from accel_bench.documents.presets import find_presets
from accel_bench.plugins.registry import installed
from accel_bench.result import Result, Status
from accel_bench.store.database import open_store
from accel_bench.testing import check_plugin, run_plugin

# What torch, peft and transformers say of themselves while they are imported is not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore")

MIXTRAL: dict[str, Any] = {"model": {"id": "mixtral-8x7b"}}


@pytest.mark.parametrize(
    "experts, model, architecture",
    [
        ("eager", "mixtral-8x7b", "MixtralForCausalLM"),
        ("grouped_mm", "mixtral-8x7b", "MixtralForCausalLM"),
        ("eager", "granite-3-1b-a400m", "GraniteMoeForCausalLM"),
    ],
)
def test_it_keeps_the_contract(experts: str, model: str, architecture: str) -> None:
    """On the losses of transformers' own choice, in float32 and in bfloat16."""
    report = check_plugin(
        "moe", options={"experts": experts}, scenario={"model": {"id": model}}, archs=[architecture]
    )
    assert report.ran


def test_a_run_under_lora_and_checkpointing_says_how_experts_multiplied() -> None:
    work = {
        **MIXTRAL,
        "adapter": {"use": "lora", "target_modules": ["q_proj", "v_proj"]},
        "train": {"gradient_checkpointing": True},
    }
    result = run_plugin("moe", scenario=work, experts="eager")
    (rank,) = result.ranks
    assert result.status.completed, result.reasons
    assert rank.effective["experts"] == rank.evidence["moe"]["experts"] == "eager"
    assert rank.evidence["moe"]["switched_modules"] == 2
    assert rank.workload is not None


def test_a_model_without_experts_is_skipped_with_its_reason() -> None:
    result = run_plugin("moe")
    assert result.status is Status.SKIPPED
    assert "LlamaForCausalLM" in result.reasons[0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("experts", ["eager", "batched_mm", "grouped_mm"])
def test_it_keeps_the_contract_on_a_gpu(experts: str) -> None:
    work = {"model": {"id": "mixtral-8x7b", "dtype": "bfloat16"}}
    report = check_plugin(
        "moe",
        options={"experts": experts},
        scenario=work,
        archs=["MixtralForCausalLM"],
        dtypes=["bfloat16"],
        device="cuda",
    )
    assert report.ran


@pytest.mark.parametrize("name", ["moe-eager", "moe-batched", "moe-grouped"])
def test_named_stacks_are_found(name: str) -> None:
    assert "accel_bench_moe" in str(find_presets("stacks")[name])


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Result]]:
    """The sample for a CPU, shortened: what it prints, and its results by stack."""
    folder = tmp_path_factory.mktemp("moe")
    arguments = ["moe-cpu", "--results", "r", "--set", "measure.steps=2"]
    done = subprocess.run(
        [sys.executable, "-m", "accel_bench", "run", *arguments],
        env={**os.environ, "COLUMNS": "200", "GIT_DIR": os.devnull},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with open_store(folder / "r", write=False) as store:
        return done.stdout, {found.experiment.stack.name: found for found in store.results()}


def test_the_sample_ends_in_a_table_of_all_stacks_with_one_loss(
    session: tuple[str, dict[str, Result]],
) -> None:
    text, found = session
    rows = [line.split() for line in text.splitlines()]
    for stack in ("moe-eager", "moe-batched", "moe-grouped", "default"):
        (row,) = [row for row in rows if row[:1] == [stack] and row[-1] == "ok"]
        assert stack == "moe-eager" or "equivalent" in row
        assert found[stack].status is Status.OK


def test_the_sample_shows_that_a_stack_without_the_plugin_is_no_loop(
    session: tuple[str, dict[str, Result]],
) -> None:
    _, found = session
    effective = {stack: result.ranks[0].effective["experts"] for stack, result in found.items()}
    assert effective == {
        "moe-eager": "eager",
        "moe-batched": "batched_mm",
        "moe-grouped": "grouped_mm",
        "default": "grouped_mm",
    }


def test_it_does_not_stand_beside_what_packs_experts_one_by_one(tmp_path: Path) -> None:
    if "autogptq" not in {plugin.name for plugin in installed()}:
        pytest.skip("autogptq is not installed")
    scenario = {
        "name": "both",
        "model": {"id": "mixtral-8x7b", "dtype": "bfloat16"},
        "stacks": {"baseline": [], "both": ["autogptq", "moe"]},
        "resources": {"device": "cpu"},
    }
    (tmp_path / "s.yaml").write_text(json.dumps(scenario))
    done = subprocess.run(
        [sys.executable, "-m", "accel_bench", "run", "s.yaml", "--dry-run"],
        env={**os.environ, "COLUMNS": "200", "GIT_DIR": os.devnull},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "'moe' conflicts with 'autogptq'" in done.stderr

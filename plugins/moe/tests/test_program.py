"""The plugin in the program: its contract, and its sample scenarios."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.program import call
from several_ranks.scenarios import STARTS

from accel_bench.analysis.checks.convergence import compare_losses
from accel_bench.documents.presets import find_presets
from accel_bench.plugins.registry import installed
from accel_bench.result import Result, Status
from accel_bench.testing import check_plugin, run_plugin, run_program, run_scenario

# What torch, peft and transformers say of themselves while they are imported is not ours to mend.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

MIXTRAL: dict[str, Any] = {"model": {"id": "mixtral-8x7b"}}


@pytest.mark.parametrize(
    "experts, model, architecture",
    [
        pytest.param("eager", "mixtral-8x7b", "MixtralForCausalLM", marks=pytest.mark.release),
        ("grouped_mm", "mixtral-8x7b", "MixtralForCausalLM"),
        # Its layer is in test_layer.py.
        pytest.param(
            "eager", "granite-3-1b-a400m", "GraniteMoeForCausalLM", marks=pytest.mark.release
        ),
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
    assert rank.effective.experts == rank.evidence["moe"]["experts"] == "eager"
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


STACKS = ("moe-eager", "moe-batched", "moe-grouped", "default")
"""Stacks of the sample for a CPU."""


@pytest.fixture(scope="module")
def sample() -> dict[str, Result]:
    """Results of the sample for a CPU, shortened, by stack."""
    return run_scenario("moe-cpu", settings={"measure.steps": 4})


@pytest.mark.parametrize("stack", STACKS)
def test_each_stack_of_the_sample_ends_with_the_loss_of_the_first(
    stack: str, sample: dict[str, Result]
) -> None:
    assert sample[stack].status.completed, sample[stack].reasons
    compared = compare_losses({("", 0): sample["moe-eager"]}, {("", 0): sample[stack]})
    assert compared.loss_verdict in ("bitwise equal", "equivalent")


def test_the_sample_shows_that_a_stack_without_the_plugin_is_no_loop(
    sample: dict[str, Result],
) -> None:
    effective = {stack: result.ranks[0].effective.experts for stack, result in sample.items()}
    assert effective == {
        "moe-eager": "eager",
        "moe-batched": "batched_mm",
        "moe-grouped": "grouped_mm",
        "default": "grouped_mm",
    }


@pytest.mark.parametrize("start", STARTS)
def test_the_program_ends_in_a_table(start: Any, tmp_path: Path) -> None:
    """One process of it; that it learns alike is shown in this process, above."""
    few = ("--only", "moe-grouped", "--no-baseline", "--set", "measure.steps=2")
    with start(tmp_path / "site") as launching:
        done = call(
            "run", "moe-cpu", "--results", "r", *few, *launching, folder=tmp_path, COLUMNS="200"
        )
    assert done.code == 0, done.out + done.err
    table = done.out[done.out.index("───") :]
    row = next(line.split() for line in table.splitlines() if line.startswith("moe-grouped"))
    assert float(row[1].replace(",", "")) > 0


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
    done = run_program(
        "run", "s.yaml", "--dry-run", folder=tmp_path, environment={"COLUMNS": "200"}
    )
    assert done.returncode == 2
    assert "'moe' conflicts with 'autogptq'" in done.stderr

"""Stacks of two and three plugins learn like their baseline."""

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from accel_bench.analysis.checks.convergence import compare_losses
from accel_bench.result import Result, Status
from accel_bench.testing import run_scenario

# What torch and the libraries say of themselves while they trace is not ours to mend.
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore"),
]

NEEDS_BITSANDBYTES = pytest.mark.skipif(
    not find_spec("accel_bench_bitsandbytes"), reason="needs the plugin bitsandbytes"
)

NF4 = {"use": "bitsandbytes", "quant_type": "nf4"}

RAGGED = {"use": "synthetic", "sequence_length": 48, "lengths": {"median": 24, "sigma": 0.6}}


def run_all(
    scenario: str | Path, settings: Mapping[str, Any] | None = None, only: Sequence[str] = ()
) -> dict[str, Result]:
    """Run stacks of a scenario in this process; return the results by stack."""
    return run_scenario(scenario, settings={"resources.threads": 1, **(settings or {})}, only=only)


NEAR = ("bitwise equal", "equivalent", "inconclusive")
"""Verdicts that accept a loss; a few steps of LoRA hardly change it."""


def learn_alike(found: dict[str, Result], baseline: str) -> None:
    """Check that all stacks ended well, with the baseline's loss within declared tolerances."""
    for stack, result in found.items():
        # A busy machine degrades a run, for reasons of its own.
        assert result.status.completed, (stack, result.reasons)
        compared = compare_losses({("", 0): found[baseline]}, {("", 0): result})
        assert compared.loss_verdict in NEAR, (stack, compared)


TRACED = {
    "single-gpu-full-cpu": ("compiled", "fused-compiled", "fused-loss-compiled"),
    "single-gpu-lora-cpu": (
        *("compiled", "fused-compiled", "fused-loss-compiled", "fused-loss-compiled-16-bit"),
    ),
    "single-gpu-qlora-cpu": ("nf4-compiled", "gptq-compiled"),
}
"""Stacks that are traced without compilation, which takes inductor most of a minute."""

FEW = {
    "single-gpu-lora-cpu": ("lora", "fused-compiled"),
    "single-gpu-qlora-cpu": ("qlora", "gptq-fused"),
}
"""Stacks that cover all parts of the others. NF4 with fused kernels and the compiler is below."""


@pytest.mark.parametrize(
    "traced",
    [pytest.param(True, id="few"), pytest.param(False, id="all", marks=pytest.mark.release)],
)
@pytest.mark.parametrize(
    ("name", "baseline"),
    [
        # The next one has its stacks too, under an adapter.
        pytest.param("single-gpu-full-cpu", "eager", marks=pytest.mark.release),
        ("single-gpu-lora-cpu", "lora"),
        pytest.param("single-gpu-qlora-cpu", "qlora", marks=NEEDS_BITSANDBYTES),
    ],
)
def test_the_twin_of_a_scenario_for_a_gpu_runs_without_one(
    name: str, baseline: str, traced: bool, bench: Any
) -> None:
    stacks = TRACED[name] if traced else ()
    only = FEW.get(name, ()) if traced else ()
    if not bench.has_fused_loss:
        only = [stack for stack in only if "fused-loss" not in stack]
    chosen = [stack for stack in stacks if not only or stack in only]
    found = run_all(
        name, {f"stacks.{one}.torch-compile.backend": "aot_eager" for one in chosen}, only
    )
    # Liger alone is Triton, which needs a GPU: the scenario goes on without it, and says so.
    skipped = {stack for stack in found if stack.endswith("liger")}
    for stack in skipped:
        result = found.pop(stack)
        assert result.status is Status.SKIPPED
        assert "GPU" in " ".join(result.reasons)
    assert skipped or only
    # Nor does the oldest torch have every part.
    newer = {stack for stack in found if "torch has it from" in " ".join(found[stack].reasons)}
    assert {found.pop(stack).status for stack in newer} <= {Status.SKIPPED}
    learn_alike(found, baseline)


@NEEDS_BITSANDBYTES
@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.release)]
)
def test_three_plugins_on_a_quantized_base_learn_what_the_base_alone_learns(
    tmp_path: Path, backend: str
) -> None:
    compiled = {"use": "torch-compile", "backend": backend}
    scenario = {
        "name": "together",
        "model": {"id": "tiny-llama-cpu", "dtype": "bfloat16"},
        "adapter": {"use": "lora", "r": 4, "target_modules": "all-linear"},
        "data": RAGGED,
        "train": {"micro_batch_size": 2, "gradient_checkpointing": True},
        "resources": {"device": "cpu"},
        "stacks": {
            "nf4": [NF4],
            "three": [NF4, "fused-kernels", compiled],
        },
        "baseline": "nf4",
        "measure": {"warmup": 2, "steps": 6},
    }
    (tmp_path / "it.yaml").write_text(json.dumps(scenario))
    learn_alike(run_all(tmp_path / "it.yaml"), "nf4")


@pytest.mark.skipif(
    not (find_spec("accel_bench_padding_free") and find_spec("accel_bench_moe")),
    reason="needs the plugins padding-free and moe",
)
def test_fused_kernels_go_with_padding_free_batches_and_with_grouped_experts(
    tmp_path: Path,
) -> None:
    scenario = {
        "name": "together",
        "model": {
            "id": "mixtral-8x7b",
            "overrides": {
                "num_hidden_layers": 2,
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "num_local_experts": 4,
                "vocab_size": 2048,
            },
        },
        "data": RAGGED,
        "train": {"micro_batch_size": 2},
        "resources": {"device": "cpu"},
        "stacks": {
            "baseline": [],
            "fused-padding-free": ["fused-kernels", "padding-free"],
            "fused-moe": ["moe", "fused-kernels"],
            "all": ["moe", "fused-kernels", "padding-free"],
        },
        "measure": {"warmup": 2, "steps": 6},
    }
    (tmp_path / "it.yaml").write_text(json.dumps(scenario))
    learn_alike(run_all(tmp_path / "it.yaml"), "baseline")


@pytest.mark.skipif(not find_spec("accel_bench_padding_free"), reason="needs padding-free")
@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.release)])
def test_fused_kernels_go_with_padding_free_batches_and_with_the_compiler(
    tmp_path: Path, backend: str
) -> None:
    compiled = {"use": "torch-compile", "backend": backend}
    scenario = {
        "name": "together",
        "model": {"id": "tiny-llama-cpu"},
        "data": RAGGED,
        "train": {"micro_batch_size": 4},
        "resources": {"device": "cpu"},
        "stacks": {
            "baseline": [],
            "all": ["fused-kernels", "padding-free", compiled],
        },
        "measure": {"warmup": 2, "steps": 6},
    }
    (tmp_path / "it.yaml").write_text(json.dumps(scenario))
    learn_alike(run_all(tmp_path / "it.yaml"), "baseline")

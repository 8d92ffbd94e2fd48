"""Stacks of two and three plugins, by the real program: each learns what its baseline learns."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

ONCE = ("--rounds", "1", "--set", "resources.threads=1")

NF4 = {"use": "bitsandbytes", "quant_type": "nf4"}

RAGGED = {"use": "synthetic", "sequence_length": 48, "lengths": {"median": 24, "sigma": 0.6}}


def rows(folder: Path, *words: str) -> dict[str, dict]:
    """Run the program; return the rows of its document by stack."""
    ended = subprocess.run(
        [sys.executable, "-m", "accel_bench", "run", *words, "--format", "json", *ONCE],
        env={**os.environ, "ACCEL_BENCH_RESULTS": str(folder / "results"), "GIT_DIR": os.devnull},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode in (0, 3), ended.stdout + ended.stderr
    return {row["stack"]: row for row in json.loads(ended.stdout)["experiments"]}


def learn_alike(found: dict[str, dict], baseline: str) -> None:
    """All of them ended well, and with the baseline's loss within what their plugins declare."""
    for stack, row in found.items():
        assert row["status"] == "ok", (stack, row["reasons"])
        if stack != baseline:
            assert row["loss_verdict"] == "equivalent", (stack, row["loss_difference"])


@pytest.mark.parametrize(
    ("name", "baseline"),
    [
        ("single-gpu-full-cpu", "eager"),
        ("single-gpu-lora-cpu", "lora"),
        ("single-gpu-qlora-cpu", "qlora"),
    ],
)
def test_the_twin_of_a_scenario_for_a_gpu_runs_without_one(
    name: str, baseline: str, tmp_path: Path
) -> None:
    found = rows(tmp_path, name)
    # Liger alone is Triton, which needs a GPU: the scenario goes on without it, and says so.
    skipped = {stack for stack in found if stack.endswith("liger")}
    for stack in skipped:
        row = found.pop(stack)
        assert row["status"] == "skipped"
        assert "GPU" in " ".join(row["reasons"])
    assert skipped
    learn_alike(found, baseline)


def test_three_plugins_on_a_quantized_base_learn_what_the_base_alone_learns(tmp_path: Path) -> None:
    scenario = {
        "name": "together",
        "model": {"id": "tiny-llama-cpu", "dtype": "bfloat16"},
        "adapter": {"use": "lora", "r": 4, "target_modules": "all-linear"},
        "data": RAGGED,
        "train": {"micro_batch_size": 2, "gradient_checkpointing": True},
        "resources": {"device": "cpu"},
        "stacks": {
            "nf4": [NF4],
            "two": [NF4, "fused-kernels"],
            "three": [NF4, "fused-kernels", "torch-compile"],
        },
        "baseline": "nf4",
        "measure": {"warmup": 2, "steps": 6},
    }
    (tmp_path / "it.yaml").write_text(json.dumps(scenario))
    learn_alike(rows(tmp_path, "it.yaml"), "nf4")


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
    learn_alike(rows(tmp_path, "it.yaml"), "baseline")


@pytest.mark.skipif(not find_spec("accel_bench_padding_free"), reason="needs padding-free")
def test_fused_kernels_go_with_padding_free_batches_and_with_the_compiler(tmp_path: Path) -> None:
    compiled = {"use": "torch-compile", "backend": "aot_eager"}
    scenario = {
        "name": "together",
        "model": {"id": "tiny-llama-cpu"},
        "data": RAGGED,
        "train": {"micro_batch_size": 4},
        "resources": {"device": "cpu"},
        "stacks": {
            "baseline": [],
            "fused-compiled": ["fused-kernels", compiled],
            "all": ["fused-kernels", "padding-free", compiled],
        },
        "measure": {"warmup": 2, "steps": 6},
    }
    (tmp_path / "it.yaml").write_text(json.dumps(scenario))
    learn_alike(rows(tmp_path, "it.yaml"), "baseline")

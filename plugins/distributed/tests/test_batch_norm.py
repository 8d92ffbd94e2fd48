"""Batch norms beside bfloat16 weights: they stay float32, and the rest computes in 16 bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from accel_bench_distributed import Mesh, MeshOptions
from accel_bench_distributed.impl import Sharding
from media_works import WORKS
from several_ranks.scenarios import validation_losses
from task_works import MEASURED

from accel_bench.analysis.checks.training import compare_training
from accel_bench.analysis.checks.training_verdict import training_obstacle
from accel_bench.testing import close_run, make_run, run_scenario


def test_a_resnet_trains_with_master_weights_as_in_float32(tmp_path: Path) -> None:
    """Training uses the batch's statistics, evaluations the running averages."""
    path = tmp_path / "resnet.yaml"
    stacks = {"baseline": [], "fsdp2": "fsdp2", "master": "master-weights"}
    work = {**MEASURED, **WORKS["resnet"], "stacks": stacks}
    work["data"] = {**work["data"], "held_out": 0.25}
    path.write_text(json.dumps(work))
    baseline, sharded, master = run_scenario(path).values()
    for result, dtype in ((sharded, "float32"), (master, "bfloat16")):
        assert result.status.completed, result.reasons
        compared = compare_training({("", 0): baseline}, {("", 0): result})
        assert not compared.training_difference
        assert not training_obstacle(compared)
        effective = result.ranks[0].effective
        assert set(effective.matmul_dtypes) == {dtype}
        assert set(effective.trained_dtypes) == {"float32"}
        assert set(effective.sharding) == {"shard 1: Shard(dim=0)"}
        assert validation_losses(result) == pytest.approx(validation_losses(baseline), rel=1e-2)
    assert sharded.ranks[0].workload == baseline.ranks[0].workload is not None


def test_what_a_batch_norm_returns_is_of_the_dtype_of_the_computation(tmp_path: Path) -> None:
    run = make_run(
        tmp_path, {"train": {"precision": "bf16-master-weights"}, "resources": {"device": "cpu"}}
    )
    norm = torch.nn.BatchNorm2d(4)
    layers = (torch.nn.Conv2d(3, 4, 3), norm, torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 3))
    run.model = torch.nn.Sequential(*layers)
    seen = []
    norm.register_forward_hook(
        lambda module, inputs, output: seen.append((module.weight.dtype, output.dtype))
    )
    sharded = Sharding(run, Mesh(MeshOptions(), "mesh").sizes(1), MeshOptions()).model
    try:
        for training in (True, False):
            sharded.train(training)
            assert sharded(torch.randn(2, 3, 8, 8)).dtype == torch.bfloat16
    finally:
        close_run(run)
    assert seen == 2 * [(torch.float32, torch.bfloat16)]
    assert norm.running_mean.dtype == torch.float32

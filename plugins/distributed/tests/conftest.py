"""Scenarios of several ranks that one program runs (`forked.py`), and comparing their results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fault_plugins.distribution import install

from accel_bench import Result, Status
from accel_bench.analysis.checks.audit import audit
from accel_bench.analysis.checks.training import TrainingComparison, compare_training
from accel_bench.analysis.metrics.throughput import run_throughput

LENGTHS = {"median": 24, "sigma": 0.5}

WORK: dict[str, Any] = {
    "model": {"id": "tiny-llama-cpu", "overrides": {"num_hidden_layers": 1, "hidden_size": 64}},
    "data": {"use": "synthetic", "sequence_length": 48, "lengths": LENGTHS},
    "train": {"global_batch_size": 8, "learning_rate": 0.1, "max_grad_norm": 0.1},
    "optimizer": "sgd",
    "resources": {"device": "cpu", "threads": 1},
    "measure": {"warmup": 2, "steps": 3, "phase_steps": 0, "rounds": 1, "timeout_seconds": 300},
}

PRETENDERS = """
from accel_bench import Plugin, hookimpl


class ShardsAndReplicates(Plugin):
    '''Says FSDP2, and replicates.'''

    strategy = "FSDPModule"

    @hookimpl
    def parallelize_model(self, run):
        from torch.nn.parallel import DistributedDataParallel
        return DistributedDataParallel(run.model, forward_sync_buffers=False)


class ReplicatesAndShards(Plugin):
    '''Says DDP, and shards.'''

    strategy = "DistributedDataParallel"

    @hookimpl
    def parallelize_model(self, run):
        from torch.distributed.fsdp import fully_shard
        return fully_shard(run.model)


class ShardsAlone(Plugin):
    '''Says FSDP2, and gives each rank a mesh of its own.'''

    strategy = "FSDPModule"

    @hookimpl
    def parallelize_model(self, run):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("apart", "alone"))
        return fully_shard(run.model, mesh=mesh["alone"])


class Cuts(Plugin):
    '''Keeps the gradient from the MLP of the first block.'''

    @hookimpl
    def accelerate_model(self, run):
        mlp = run.model.model.layers[0].mlp
        mlp.register_forward_hook(lambda module, inputs, output: output.detach())

"""

KINDS = {
    "shards-and-replicates": "ShardsAndReplicates",
    "replicates-and-shards": "ReplicatesAndShards",
    "shards-alone": "ShardsAlone",
    "cuts": "Cuts",
}


def write(folder: Path, name: str, devices: int, stacks: Mapping[str, Any], **work: Any) -> Path:
    """Write a scenario; keys of `work` are merged into their sections."""
    merged: dict[str, Any] = {**WORK, "name": name, "stacks": dict(stacks)}
    merged["resources"] = {**WORK["resources"], "devices": devices}
    for key, value in work.items():
        merged[key] = {**WORK[key], **value} if isinstance(WORK.get(key), dict) else value
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(merged))
    return path


def run_all(folder: Path, *scenarios: Path) -> dict[str, dict[str, Result]]:
    """Run all stacks of the scenarios; return results by scenario and stack."""
    out = folder / "results.json"
    site = folder / "site"
    if not site.exists():
        site.mkdir()
        install(site, "accel-bench-pretenders", KINDS, PRETENDERS)
    program = Path(__file__).with_name("forked.py")
    paths = filter(None, [os.environ.get("PYTHONPATH")])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), *map(str, scenarios), str(out)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *paths])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    return {
        name: {
            stack: Result.model_validate_json(json.dumps(one["result"]))
            for stack, one in stacks.items()
        }
        for name, stacks in found.items()
    }


def compared(alone: Result, together: Result) -> TrainingComparison:
    """Compare a run of several ranks with that of one process."""
    assert together.status is Status.OK, together.reasons
    assert audit(together) == []
    return compare_training({("", 0): alone}, {("", 0): together})


def assert_same_training(alone: Result, together: Result) -> None:
    """Losses, tokens and updates are those of one process, to rounding."""
    found = compared(alone, together)
    one, several = run_throughput(alone), run_throughput(together)
    assert one is not None and several is not None
    assert several.losses == pytest.approx(one.losses, rel=1e-6)
    assert (several.real_tokens, several.step_tokens) == (one.real_tokens, one.step_tokens)
    assert found.training_reasons == ()
    assert (found.update_verdict, found.loss_reason[:2]) != ("different", "by")
    assert found.update_difference is not None and found.update_difference < 1e-4
    sketches = [rank.update.weights for rank in together.ranks if rank.update]
    assert len(sketches) == len(together.ranks)


@pytest.fixture(scope="session")
def ranks() -> SimpleNamespace:
    """Return `write(folder, name, devices, stacks, **work)`, which writes a scenario, and `run`,
    which runs several; `compared` and `assert_same_training` take the results."""
    return SimpleNamespace(
        write=write, run=run_all, compared=compared, assert_same_training=assert_same_training
    )

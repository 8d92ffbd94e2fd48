"""Run scenarios of several ranks in one program (`tests/several_ranks`), and compare results."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from several_ranks.scenarios import run_all, validation_losses, write

from accel_bench import Result, Status
from accel_bench.analysis.checks.audit import audit
from accel_bench.analysis.checks.training import compare_training
from accel_bench.analysis.checks.training_verdict import TrainingComparison
from accel_bench.analysis.metrics.throughput import run_throughput

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


def run(folder: Path, *scenarios: Path) -> dict[str, dict[str, Result]]:
    """Run all stacks of the scenarios, beside the pretenders."""
    return run_all(folder, *scenarios, pretenders=KINDS, source=PRETENDERS)


def compared(alone: Result, together: Result) -> TrainingComparison:
    """Compare a run of several ranks with that of one process."""
    assert together.status is Status.OK, together.reasons
    assert audit(together) == []
    return compare_training({("", 0): alone}, {("", 0): together})


def assert_same_training(alone: Result, together: Result, rounding: float = 1e-6) -> None:
    """Check that losses, tokens and updates equal those of one process, up to rounding."""
    found = compared(alone, together)
    one, several = run_throughput(alone), run_throughput(together)
    assert one is not None and several is not None
    assert several.losses == pytest.approx(one.losses, rel=rounding)
    assert (several.real_tokens, several.step_tokens) == (one.real_tokens, one.step_tokens)
    assert found.training_reasons == ()
    assert (found.update_verdict, found.loss_reason[:2]) != ("different", "by")
    assert found.update_difference is not None and found.update_difference < 1e-4
    sketches = [rank.update.weights for rank in together.ranks if rank.update]
    assert len(sketches) == len(together.ranks)


@pytest.fixture(scope="session")
def ranks() -> SimpleNamespace:
    """Return `write(folder, name, devices, stacks, **work)`, which writes a scenario, and `run`,
    which runs several; `compared` and `assert_same_training` take the results, and
    `validation_losses` takes one."""
    return SimpleNamespace(
        write=write,
        run=run,
        compared=compared,
        assert_same_training=assert_same_training,
        validation_losses=validation_losses,
    )

"""Real ranks on gloo against one process: the same losses, tokens and update at one global batch.

With SGD, since an Adam takes the same steps whatever the scale of the gradients; with sequences of
unequal length, accumulation and clipping, which each go wrong where gradients or tokens are counted
per rank. All ranks are children of one program, which imports torch once (`forked.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fault_plugins.distribution import install

from accel_bench import Result, Status
from accel_bench.analysis.checks.audit import audit
from accel_bench.analysis.checks.training import TrainingComparison, compare_training
from accel_bench.analysis.metrics.throughput import run_throughput

pytestmark = pytest.mark.long

GATHERED = "colwise_gather_output"

LENGTHS = {"median": 24, "sigma": 0.5}

WORK: dict[str, Any] = {
    "model": {"id": "tiny-llama-cpu", "overrides": {"num_hidden_layers": 1, "hidden_size": 64}},
    "data": {"use": "synthetic", "sequence_length": 48, "lengths": LENGTHS},
    "train": {"global_batch_size": 8, "learning_rate": 0.1, "max_grad_norm": 0.1},
    "optimizer": "sgd",
    "resources": {"device": "cpu", "threads": 1},
    "measure": {"warmup": 2, "steps": 3, "phase_steps": 0, "rounds": 1, "timeout_seconds": 300},
}

SMALL_EXPERTS = {
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 2048,
    "attention_dropout": 0.0,
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

"""

KINDS = {
    "shards-and-replicates": "ShardsAndReplicates",
    "replicates-and-shards": "ReplicatesAndShards",
    "shards-alone": "ShardsAlone",
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
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), *map(str, scenarios), str(out)],
        env={**os.environ, "PYTHONPATH": str(site)},
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


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Result]]:
    """One process, two ranks of each strategy, and strategies that are not what they say."""
    folder = tmp_path_factory.mktemp("ranks")
    accumulated = {"gradient_accumulation": 2}
    return run_all(
        folder,
        write(folder, "one", 1, {"alone": []}),
        write(
            folder,
            "two",
            2,
            {"ddp": [], "fsdp2": ["mesh"], "tensor": [{"use": "mesh", "tensor": "auto"}]},
            train=accumulated,
        ),
        write(folder, "pretended", 2, {name: [name] for name in KINDS}),
    )


@pytest.mark.parametrize("stack", ["ddp", "fsdp2", "tensor"])
def test_two_ranks_train_as_one_process_does(
    results: dict[str, dict[str, Result]], stack: str
) -> None:
    assert_same_training(results["one"]["alone"], results["two"][stack])


def test_what_joins_the_ranks_is_read_back_from_the_tensors(
    results: dict[str, dict[str, Result]],
) -> None:
    found = {stack: result.ranks[0].effective for stack, result in results["two"].items()}
    total = sum(found["ddp"].trained_dtypes.values())
    assert {stack: one.strategy for stack, one in found.items()} == {
        "ddp": "DistributedDataParallel",
        "fsdp2": "FSDPModule",
        "tensor": "DTensor",
    }
    assert found["ddp"].sharding == {}
    assert found["fsdp2"].sharding == {"shard 2: Shard(dim=0)": total}
    assert found["fsdp2"].held_elements == total / 2
    assert found["tensor"].sharding["whole"] < 0.01 * total
    assert found["fsdp2"].model_class == found["ddp"].model_class == "LlamaForCausalLM"
    assert {sum(one.trained_dtypes.values()) for one in found.values()} == {total}


def test_ranks_that_share_a_batch_take_all_of_it(results: dict[str, dict[str, Result]]) -> None:
    tensor, sharded = (results["two"][stack] for stack in ("tensor", "fsdp2"))
    sizes = [one.experiment.scenario.train.micro_batch_size for one in (tensor, sharded)]
    assert sizes == [4, 2]
    assert tensor.experiment.scenario.resources.data_parallel == 1
    first, second = (rank.window for rank in tensor.ranks)
    assert first is not None and second is not None
    assert [one.real_tokens for one in first.samples] == [one.real_tokens for one in second.samples]


def test_the_evidence_says_what_each_rank_holds(results: dict[str, dict[str, Result]]) -> None:
    shown = [rank.evidence["mesh"] for rank in results["two"]["fsdp2"].ranks]
    assert [one["summary"] for one in shown] == ["shard 2; this rank holds 50% of the weights"] * 2
    divided = results["two"]["tensor"].ranks[0].evidence["mesh"]["divided_matrices"]
    assert divided == {"embedding_rowwise": 1, "colwise": 5, "rowwise": 2, GATHERED: 1}
    assert "ddp" not in results["two"]["fsdp2"].ranks[0].evidence


@pytest.mark.parametrize(
    "stack, reason",
    [
        (
            "shards-and-replicates",
            "the strategy is DistributedDataParallel, and its plugin says FSDPModule",
        ),
        (
            "replicates-and-shards",
            "the strategy is FSDPModule, and its plugin says DistributedDataParallel",
        ),
        (
            "shards-alone",
            "the model is divided over 1 of 2 processes, and nothing joins the others",
        ),
    ],
)
def test_a_strategy_that_is_not_what_it_says_is_invalid_and_named(
    results: dict[str, dict[str, Result]], stack: str, reason: str
) -> None:
    result = results["pretended"][stack]
    assert result.status is Status.INVALID
    assert reason in " ".join(result.reasons)


@pytest.mark.release
def test_every_mesh_trains_as_one_process_does(tmp_path: Path) -> None:
    """The wide matrix: two and four ranks, adapters, experts, checkpointing, other optimizers."""
    lora = {"adapter": {"use": "lora", "r": 4}}
    experts = {"model": {"id": "mixtral-8x7b", "overrides": SMALL_EXPERTS}}
    granite = {"model": {"id": "granite-3-1b-a400m", "overrides": SMALL_EXPERTS}}
    tensor, expert = {"use": "mesh", "tensor": 2}, {"use": "mesh", "expert": 2}
    both = {"use": "mesh", "tensor": 2, "expert": 2}
    options = {
        "zero2": [{"use": "mesh", "reshard_after_forward": False}],
        "checkpointed": {"set": {"train.gradient_checkpointing": True}, "use": ["mesh"]},
        "hsdp": [{"use": "mesh", "replicate": 2}],
        "shard-tensor": [{**tensor, "shard": 2}],
        "replicate-tensor": [{**tensor, "replicate": 2}],
    }
    adapted = {"fsdp2": ["mesh"], "tensor": [tensor], "ddp": []}
    sparse = {"ddp": [], "fsdp2": ["mesh"], "expert": [expert]}
    found = run_all(
        tmp_path,
        write(tmp_path, "one", 1, {"alone": []}),
        write(tmp_path, "four", 4, options, train={"gradient_accumulation": 2}),
        write(tmp_path, "lora-one", 1, {"alone": []}, **lora),
        write(tmp_path, "lora", 2, adapted, **lora),
        write(tmp_path, "experts-one", 1, {"alone": []}, **experts),
        write(tmp_path, "experts", 2, {**sparse, "both": [both]}, **experts),
        write(tmp_path, "experts-four", 4, {"shard": [{**expert, "shard": 2}]}, **experts),
        write(tmp_path, "granite-one", 1, {"alone": []}, **granite),
        write(tmp_path, "granite", 2, sparse, **granite),
    )
    for name, stacks in found.items():
        for together in stacks.values():
            base = f"{name.partition('-')[0]}-one".replace("four-one", "one")
            if not name.endswith("one"):
                assert_same_training(found[base]["alone"], together)


@pytest.mark.release
def test_master_weights_compute_in_bfloat16_and_are_kept_in_float32(tmp_path: Path) -> None:
    static = {"set": {"train.precision": "bf16-master-weights"}}
    tensor = {**static, "use": [{"use": "mesh", "tensor": 2}]}
    found = run_all(
        tmp_path,
        write(
            tmp_path,
            "one",
            1,
            {
                "alone": [],
                "mesh": ["mesh"],
                "master": {**static, "use": ["mesh"]},
                "autocast": {"set": {"train.precision": "bf16-autocast"}, "use": ["mesh"]},
            },
        ),
        write(tmp_path, "two", 2, {"master": {**static, "use": ["mesh"]}, "tensor": tensor}),
    )
    one = found["one"]
    assert_same_training(one["alone"], one["mesh"])
    for result in (one["master"], one["autocast"], *found["two"].values()):
        difference = compared(one["alone"], result).update_difference
        assert difference is not None and 0 < difference < 0.05
        effective = result.ranks[0].effective
        assert set(effective.matmul_dtypes) == {"bfloat16"}
        assert set(effective.trained_dtypes) == {"float32"}

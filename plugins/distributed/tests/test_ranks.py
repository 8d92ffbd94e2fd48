"""Real ranks on gloo against one process: the same losses, tokens and update at one global batch.

With SGD, since an Adam takes the same steps whatever the scale of the gradients; with sequences of
unequal length, accumulation and clipping, which each go wrong where gradients or tokens are counted
per rank. All ranks are children of one program, which imports torch once (`tests/several_ranks`).
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from task_works import DPO

from accel_bench import Result, Status

pytestmark = pytest.mark.long

GATHERED = "colwise_gather_output"

PRETENDERS = {
    "shards-and-replicates": "is DistributedDataParallel, and its plugin says FSDPModule",
    "replicates-and-shards": "is FSDPModule, and its plugin says DistributedDataParallel",
    "shards-alone": "the model is divided over 1 of 2 processes, and nothing joins the others",
    "cut": "the gradient is cut: 4 trained modules received none: model.layers.0.mlp.",
}
"""Stacks that do not train as they claim, and the expected reason."""

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


EXPERTS = {"model": {"id": "mixtral-8x7b", "overrides": SMALL_EXPERTS}}

DISPATCHED = {"use": "mesh", "expert": 2, "dispatch": True}


def pretended(*stacks: str) -> dict[str, list[str]]:
    """Return these stacks of `PRETENDERS`."""
    return {stack: ["cuts", "mesh"] if stack == "cut" else [stack] for stack in stacks}


def assert_invalid(found: dict[str, dict[str, Result]], stack: str) -> None:
    """Check that a pretender's run is invalid for its reason."""
    assert found["pretended"][stack].status is Status.INVALID
    assert PRETENDERS[stack] in " ".join(found["pretended"][stack].reasons)


@pytest.fixture(scope="module")
def results(
    tmp_path_factory: pytest.TempPathFactory, ranks: SimpleNamespace
) -> dict[str, dict[str, Result]]:
    """Results of one process, two ranks of each strategy, and pretenders."""
    folder = tmp_path_factory.mktemp("ranks")
    accumulated = {"gradient_accumulation": 2}
    divided = {"task": {**DPO["task"], "reference_tensor_parallel_size": 2}}
    ddp = {"set": {"parallel": {"use": "ddp", "bucket_cap_mb": 0.25}}}
    return ranks.run(
        folder,
        ranks.write(folder, "one", 1, {"alone": []}),
        ranks.write(
            folder,
            "two",
            2,
            {"ddp": ddp, "fsdp2": ["mesh"], "tensor": [{"use": "mesh", "tensor": "auto"}]},
            train=accumulated,
        ),
        ranks.write(folder, "pretended", 2, pretended("shards-and-replicates", "cut")),
        ranks.write(folder, "experts-one", 1, {"alone": []}, **EXPERTS),
        ranks.write(
            folder,
            "experts-two",
            2,
            {
                "dispatched": [DISPATCHED],
                "recomputed": {"set": {"train.gradient_checkpointing": True}, "use": [DISPATCHED]},
            },
            train=accumulated,
            **EXPERTS,
        ),
        ranks.write(folder, "preferring-one", 1, {"alone": []}, **DPO),
        ranks.write(folder, "preferring-two", 2, {"ddp": []}, **{**DPO, **divided}),
    )


@pytest.mark.parametrize("stack", ["ddp", "fsdp2", "tensor"])
def test_two_ranks_train_as_one_process_does(
    results: dict[str, dict[str, Result]], stack: str, ranks: SimpleNamespace
) -> None:
    ranks.assert_same_training(results["one"]["alone"], results["two"][stack])


@pytest.mark.parametrize("stack", ["ddp", "fsdp2", "tensor"])
def test_two_ranks_evaluate_what_one_process_does(
    results: dict[str, dict[str, Result]], stack: str, ranks: SimpleNamespace
) -> None:
    alone, together = results["one"]["alone"], results["two"][stack]
    losses = ranks.validation_losses(alone)
    assert len(losses) == 2
    assert losses[1] < losses[0]
    assert ranks.validation_losses(together) == pytest.approx(losses, rel=1e-5)
    counts = [
        sum(rank.learning.evaluations[-1].sequences for rank in one.data_ranks if rank.learning)
        for one in (alone, together)
    ]
    assert counts == [9, 9]


@pytest.mark.parametrize("stack", ["dispatched", "recomputed"])
def test_tokens_that_are_sent_to_their_experts_train_as_in_one_process(
    results: dict[str, dict[str, Result]], stack: str, ranks: SimpleNamespace
) -> None:
    alone, together = results["experts-one"]["alone"], results["experts-two"][stack]
    ranks.assert_same_training(alone, together)
    losses = ranks.validation_losses(alone)
    assert ranks.validation_losses(together) == pytest.approx(losses, rel=1e-5)
    assert together.experiment.scenario.data_parallel == 2
    found, shown = together.ranks[0].effective, together.ranks[0].evidence["mesh"]
    assert found.strategy == "FSDPModule"
    assert found.held_elements == sum(found.trained_dtypes.values()) / 2
    assert (shown["dispatch"], shown["divided_layers_of_experts"]) == (True, 1)


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
    replicated = results["two"]["ddp"].ranks[0].evidence["ddp"]
    assert (replicated["bucket_bytes"], replicated["static_graph"]) == (2**18, False)
    assert replicated["replica_difference"] == 0


def test_a_reference_over_two_devices_gives_the_losses_of_one_that_is_whole(
    results: dict[str, dict[str, Result]], ranks: SimpleNamespace
) -> None:
    alone, together = results["preferring-one"]["alone"], results["preferring-two"]["ddp"]
    ranks.assert_same_training(alone, together, 1e-5)
    whole, parts = (one.ranks[0].evidence["dpo"] for one in (alone, together))
    assert whole["reference_layers"] == {"Linear": 8}
    assert parts["reference_layers"] == {"Linear of DTensor": 8}
    assert "over 2 devices" in parts["reference"]
    assert "ranks compute parts of one model" in together.ranks[0].workload_reason


@pytest.mark.parametrize("stack", ["shards-and-replicates", "cut"])
def test_what_does_not_train_as_it_says_is_invalid_and_named(
    results: dict[str, dict[str, Result]], stack: str
) -> None:
    assert_invalid(results, stack)


@pytest.mark.release
def test_every_other_strategy_that_is_not_in_force_is_invalid_and_named(
    tmp_path: Path, ranks: SimpleNamespace
) -> None:
    stacks = ("replicates-and-shards", "shards-alone")
    found = ranks.run(tmp_path, ranks.write(tmp_path, "pretended", 2, pretended(*stacks)))
    for stack in stacks:
        assert_invalid(found, stack)


@pytest.mark.release
def test_every_mesh_trains_as_one_process_does(tmp_path: Path, ranks: SimpleNamespace) -> None:
    """The wide matrix: two and four ranks, adapters, experts, checkpointing, other optimizers."""
    lora = {"adapter": {"use": "lora", "r": 4}}
    granite = {"model": {"id": "granite-3-1b-a400m", "overrides": SMALL_EXPERTS}}
    tensor, expert = {"use": "mesh", "tensor": 2}, {"use": "mesh", "expert": 2}
    both = {"use": "mesh", "tensor": 2, "expert": 2}
    static = {"parallel": {"use": "ddp", "static_graph": True}}
    options = {
        "static-ddp": {"set": {**static, "train.gradient_accumulation": 1}},
        "zero2": [{"use": "mesh", "reshard_after_forward": False}],
        "checkpointed": {"set": {"train.gradient_checkpointing": True}, "use": ["mesh"]},
        "hsdp": [{"use": "mesh", "replicate": 2}],
        "shard-tensor": [{**tensor, "shard": 2}],
        "replicate-tensor": [{**tensor, "replicate": 2}],
    }
    adapted = {"fsdp2": ["mesh"], "tensor": [tensor], "ddp": []}
    sparse = {"ddp": [], "fsdp2": ["mesh"], "expert": [expert], "dispatched": [DISPATCHED]}
    found = ranks.run(
        tmp_path,
        ranks.write(tmp_path, "one", 1, {"alone": []}),
        ranks.write(tmp_path, "four", 4, options, train={"gradient_accumulation": 2}),
        ranks.write(tmp_path, "lora-one", 1, {"alone": []}, **lora),
        ranks.write(tmp_path, "lora", 2, adapted, **lora),
        ranks.write(tmp_path, "experts-one", 1, {"alone": []}, **EXPERTS),
        ranks.write(tmp_path, "experts", 2, {**sparse, "both": [both]}, **EXPERTS),
        ranks.write(tmp_path, "experts-four", 4, {"shard": [{**expert, "shard": 2}]}, **EXPERTS),
        ranks.write(tmp_path, "granite-one", 1, {"alone": []}, **granite),
        ranks.write(tmp_path, "granite", 2, sparse, **granite),
    )
    for name, stacks in found.items():
        for together in stacks.values():
            base = f"{name.partition('-')[0]}-one".replace("four-one", "one")
            if not name.endswith("one"):
                ranks.assert_same_training(found[base]["alone"], together)


@pytest.mark.release
def test_ranks_whose_experts_get_no_token_train_with_the_others(
    tmp_path: Path, ranks: SimpleNamespace
) -> None:
    few = {"num_hidden_layers": 4, "num_experts_per_tok": 1}
    work = {
        "model": {"id": "mixtral-8x7b", "overrides": {**SMALL_EXPERTS, **few}},
        "data": {"sequence_length": 4, "lengths": {"median": 3, "sigma": 0.5, "minimum": 2}},
        "train": {"global_batch_size": 4},
    }
    all_four = {**DISPATCHED, "expert": 4}
    found = ranks.run(
        tmp_path,
        ranks.write(tmp_path, "one", 1, {"alone": []}, **work),
        ranks.write(tmp_path, "four", 4, {"dispatched": [all_four]}, **work),
    )
    ranks.assert_same_training(found["one"]["alone"], found["four"]["dispatched"])


@pytest.mark.release
def test_master_weights_compute_in_bfloat16_and_are_kept_in_float32(
    tmp_path: Path, ranks: SimpleNamespace
) -> None:
    static = {"set": {"train.precision": "bf16-master-weights"}}
    tensor = {**static, "use": [{"use": "mesh", "tensor": 2}]}
    found = ranks.run(
        tmp_path,
        ranks.write(
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
        ranks.write(tmp_path, "two", 2, {"master": {**static, "use": ["mesh"]}, "tensor": tensor}),
    )
    one = found["one"]
    ranks.assert_same_training(one["alone"], one["mesh"])
    for result in (one["master"], one["autocast"], *found["two"].values()):
        difference = ranks.compared(one["alone"], result).update_difference
        assert difference is not None and 0 < difference < 0.05
        effective = result.ranks[0].effective
        assert set(effective.matmul_dtypes) == {"bfloat16"}
        assert set(effective.trained_dtypes) == {"float32"}

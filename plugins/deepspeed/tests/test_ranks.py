"""DeepSpeed on two real gloo ranks against one process: the same losses, gradients and update.

With SGD, since an Adam takes the same steps whatever the scale of the gradients; with sequences of
unequal length, accumulation and clipping, which each go wrong where gradients or tokens are counted
per rank. All ranks are children of one program, which imports torch and DeepSpeed once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from several_ranks.scenarios import run_all, validation_losses, write
from task_works import ALL, BY_MICRO_BATCH

from accel_bench import Result, Status
from accel_bench.analysis.checks.audit import audit
from accel_bench.analysis.checks.training import compare_training
from accel_bench.analysis.checks.verdict_rules import gradient_norms
from accel_bench.analysis.metrics.throughput import run_throughput
from accel_bench.runner.outcome import steps_of

pytestmark = pytest.mark.long

EXPERTS = {
    "model": {
        "id": "mixtral-8x7b",
        "overrides": {
            "num_hidden_layers": 1,
            "hidden_size": 64,
            "intermediate_size": 32,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "vocab_size": 2048,
            "attention_dropout": 0.0,
        },
    }
}

PRETENDER = """
from accel_bench_deepspeed import DeepSpeed


class SaysThree(DeepSpeed):
    '''Says stage 3, and trains with the stage of its options.'''

    def expected_strategy(self, scenario):
        return "DeepSpeedEngine ZeRO-3"

"""


def run(folder: Path, *scenarios: Path) -> dict[str, dict[str, Result]]:
    """Run all stacks of the scenarios in a program that has imported DeepSpeed."""
    return run_all(
        folder,
        *scenarios,
        pretenders={"says-three": "SaysThree"},
        source=PRETENDER,
        environment={"FORKED_IMPORTS": "deepspeed", "DS_ACCELERATOR": "cpu"},
    )


def assert_same_training(alone: Result, together: Result, update: float = 1e-4) -> None:
    """Check losses, first gradients, tokens and updates against those of one process."""
    assert together.status is Status.OK, together.reasons
    assert audit(together) == []
    found = compare_training({("", 0): alone}, {("", 0): together})
    one, several = run_throughput(alone), run_throughput(together)
    assert one is not None and several is not None
    rounding = 1e-6 if update == 1e-4 else 1e-2
    assert several.losses == pytest.approx(one.losses, rel=rounding)
    assert (several.real_tokens, several.step_tokens) == (one.real_tokens, one.step_tokens)
    assert found.training_reasons == ()
    assert found.update_difference is not None and found.update_difference < update
    assert gradient_norms(together) == pytest.approx(gradient_norms(alone), rel=10 * rounding)
    assert sum(together.ranks[0].effective.trained_dtypes.values()) == sum(
        alone.ranks[0].effective.trained_dtypes.values()
    )


def zero(stage: int, **options: Any) -> list[dict[str, Any]]:
    """Return a stack with the given stage."""
    return [{"use": "deepspeed", "stage": stage, **options}]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Result]]:
    """Stages 2, in a file as Trainer's users write it, and 3; stage 1 is for a release."""
    tmp_path = tmp_path_factory.mktemp("ranks")
    file = tmp_path / "ds.json"
    file.write_text(
        json.dumps(
            {
                "zero_optimization": {"stage": 2, "overlap_comm": False},
                "train_micro_batch_size_per_gpu": "auto",
                "gradient_clipping": 0.1,
            }
        )
    )
    stacks = {"2": [{"use": "deepspeed", "config": str(file)}], "3": "zero-3"}
    temperature = {"alone": [], "2": zero(2), "3": zero(3)}
    return run(
        tmp_path,
        write(tmp_path, "one", 1, {"alone": []}),
        write(tmp_path, "two", 2, stacks, train={"gradient_accumulation": 2}),
        write(tmp_path, "temperature", 1, temperature, **ALL["image-text"]),
    )


def test_two_ranks_of_each_stage_train_as_one_process_does(
    results: dict[str, dict[str, Result]],
) -> None:
    found = results
    total = sum(found["one"]["alone"].ranks[0].effective.trained_dtypes.values())
    for stage, result in found["two"].items():
        assert_same_training(found["one"]["alone"], result)
        evaluated = validation_losses(found["one"]["alone"])
        assert validation_losses(result) == pytest.approx(evaluated, rel=1e-5)
        effective, shown = result.ranks[0].effective, result.ranks[0].evidence["deepspeed"]
        assert effective.strategy == f"DeepSpeedEngine ZeRO-{stage}"
        assert effective.sharding == {f"ZeRO-{stage} over 2": total}
        assert effective.model_class == "LlamaForCausalLM"
        assert effective.environment_changes == {}
        assert result.ranks[0].workload == found["one"]["alone"].ranks[0].workload
        assert (shown["stage"], shown["skipped_steps"]) == (int(stage), 0)
        taken = steps_of(result.ranks[0])
        assert (shown["steps"], shown["gradient_accumulation"]) == (taken, 2)
        held = effective.held_elements
        assert held is not None and (held == total if stage != "3" else held < 0.7 * total)


def assert_single_number_is_refused(result: Result, stage: int) -> None:
    """Check that the run failed with the parameter and the alternative."""
    assert result.status is Status.FAILED
    (reason,) = result.reasons
    assert f"stage {stage} fails on a parameter of a single number" in reason
    assert "logit_scale; use stage 1 or 2, the plugin mesh, or ddp" in reason


def test_a_temperature_trains_where_weights_are_whole_and_is_refused_where_they_are_divided(
    results: dict[str, dict[str, Result]],
) -> None:
    found = results["temperature"]
    assert_same_training(found["alone"], found["2"])
    assert_single_number_is_refused(found["3"], 3)


@pytest.mark.release
def test_two_ranks_train_a_temperature_as_ddp_does(tmp_path: Path) -> None:
    stacks = {"ddp": [], **{str(stage): zero(stage) for stage in (0, 1, 2)}}
    stacks["offload"] = zero(2, offload_optimizer=True)
    found = run(tmp_path, write(tmp_path, "two", 2, stacks, **ALL["image-text"]))["two"]
    assert_single_number_is_refused(found["0"], 0)
    for stack in ("1", "2", "offload"):
        assert_same_training(found["ddp"], found[stack])


@pytest.mark.release
def test_offload_precisions_adapters_and_one_device_train_the_same(tmp_path: Path) -> None:
    lora = {"adapter": {"use": "lora", "r": 4}}
    master = {"set": {"train.precision": "bf16-master-weights"}}
    autocast = {"set": {"train.precision": "bf16-autocast"}}
    exact = {
        "ddp": [],
        "0": zero(0),
        "1": "zero-1",
        "offload-2": zero(2, offload_optimizer=True),
        "offload-3": "zero-3-offload-optimizer",
        "offload-all": "zero-3-offload-all",
    }
    rounded = {
        **{f"master-{stage}": {**master, "use": zero(stage)} for stage in (1, 2, 3)},
        **{f"autocast-{stage}": {**autocast, "use": zero(stage)} for stage in (0, 1, 2, 3)},
    }
    found = run(
        tmp_path,
        write(
            tmp_path, "one", 1, {"alone": [], "1": zero(1), "3": zero(3, offload_optimizer=True)}
        ),
        write(tmp_path, "two", 2, {**exact, **rounded}, train={"gradient_accumulation": 2}),
        write(tmp_path, "lora-one", 1, {"alone": []}, **lora),
        write(tmp_path, "lora", 2, {str(stage): zero(stage) for stage in (1, 2, 3)}, **lora),
    )
    for name, stacks in found.items():
        for stack, result in stacks.items():
            alone = found["lora-one" if name.startswith("lora") else "one"]["alone"]
            assert_same_training(alone, result, 0.05 if stack in rounded else 1e-4)
            if stack in rounded:
                effective = result.ranks[0].effective
                assert set(effective.trained_dtypes) == {"float32"}
                assert set(effective.matmul_dtypes) == {"bfloat16"}


@pytest.mark.release
def test_experts_under_stage_3_are_counted_and_train_the_same(tmp_path: Path) -> None:
    """The sizes of their placeholders determine the FLOPs."""
    found = run(
        tmp_path,
        write(tmp_path, "one", 1, {"alone": []}, **EXPERTS),
        write(tmp_path, "two", 2, {"3": zero(3)}, **EXPERTS),
    )
    alone, together = found["one"]["alone"], found["two"]["3"]
    assert_same_training(alone, together)
    assert together.ranks[0].workload == alone.ranks[0].workload


@pytest.mark.release
@pytest.mark.parametrize("adapter", [{}, {"adapter": {"use": "lora", "r": 4}}], ids=["all", "lora"])
@pytest.mark.parametrize("task", sorted({*ALL} - BY_MICRO_BATCH))
def test_two_ranks_train_each_task_as_one_process_does(
    task: str, adapter: dict[str, Any], tmp_path: Path
) -> None:
    work = {**ALL[task], **adapter}
    found = run(
        tmp_path,
        write(tmp_path, "one", 1, {"alone": []}, **work),
        write(tmp_path, "two", 2, {str(stage): zero(stage) for stage in (1, 2, 3)}, **work),
    )
    for result in found["two"].values():
        assert_same_training(found["one"]["alone"], result)


@pytest.mark.release
def test_a_stage_that_is_not_in_force_is_invalid(tmp_path: Path) -> None:
    stacks = {"says-three": [{"use": "says-three", "stage": 2}]}
    result = run(tmp_path, write(tmp_path, "two", 2, stacks))["two"]["says-three"]
    assert result.status is Status.INVALID
    said = "the strategy is DeepSpeedEngine ZeRO-2, and its plugin says DeepSpeedEngine ZeRO-3"
    assert said in " ".join(result.reasons)

"""Configuration files: accepted content, and contradictions refused before the start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from accel_bench_deepspeed import DeepSpeed, DeepSpeedOptions
from accel_bench_deepspeed.config import merged, settings
from kit import this_machine
from pydantic import ValidationError

from accel_bench import Experiment
from accel_bench.errors import ScenarioError
from accel_bench.planning.plan import PlanRequest, make_plan
from accel_bench.scenario.find import read_draft
from accel_bench.testing import make_experiment, make_machine

MASTER = {"train": {"precision": "bf16-master-weights"}}


def experiment(**work: Any) -> Experiment:
    """Return an experiment on two devices."""
    train = {"learning_rate": 1e-3, "max_grad_norm": 1.0, **work.pop("train", {})}
    return make_experiment({"resources": {"devices": 2}, "train": train, **work})


def plugin(**options: Any) -> DeepSpeed:
    """Return the plugin with options."""
    return DeepSpeed(DeepSpeedOptions(**options), "deepspeed")


def file(folder: Path, content: Any) -> str:
    """Write a configuration file; return its path."""
    path = folder / "ds.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


@pytest.mark.parametrize(
    "content, said",
    [
        ({"gradient_accumulation_steps": 7}, "gradient_accumulation_steps is 7, and the scenario"),
        ({"gradient_clipping": 0.5}, "gradient_clipping is 0.5, and the scenario's is 1.0"),
        ({"train_batch_size": 999}, "train_batch_size is 999, and the scenario's is"),
        ({"bf16": {"enabled": True}}, "set train.precision: bf16-master-weights, or leave it out"),
        ({"fp16": {"enabled": True}}, 'fp16 is {"enabled": true}: its gradient scaler'),
        ({"scheduler": {"type": "WarmupLR"}}, 'scheduler is {"type": "WarmupLR"}: the learning'),
        ({"optimizer": {"type": "Lion"}}, "optimizer.type is 'Lion', and the scenario's optimizer"),
        (
            {"optimizer": {"params": {"lr": 3e-4}}},
            "optimizer.params.lr is 0.0003, and the scenario",
        ),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}},
            "zero_optimization.offload_param.device is 'nvme'",
        ),
        ("{", "is not JSON"),
        ([], "holds no mapping"),
    ],
)
def test_a_file_that_contradicts_the_scenario_is_refused_with_key_and_value(
    tmp_path: Path, content: Any, said: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        list(plugin(config=file(tmp_path, content)).check_scenario(experiment(), make_machine()))
    assert said in str(caught.value)
    assert "ds.json" in str(caught.value)


def test_a_file_and_an_option_that_disagree_are_refused(tmp_path: Path) -> None:
    path = file(tmp_path, {"zero_optimization": {"stage": 1}})
    with pytest.raises(ScenarioError, match="stage is 1, and the option stage is 3"):
        list(plugin(config=path, stage=3).check_scenario(experiment(), make_machine()))


def test_a_file_that_leaves_to_the_scenario_what_is_the_scenarios_is_taken(tmp_path: Path) -> None:
    content = {
        "train_batch_size": "auto",
        "gradient_clipping": 1.0,
        "bf16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
        "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 100},
        "prescale_gradients": False,
    }
    options = {"config": file(tmp_path, content)}
    taken = plugin(**options)
    assert list(taken.check_scenario(experiment(**MASTER), make_machine())) == []
    assert taken.stage == 3
    scenario = experiment(**MASTER).scenario
    given = merged(settings(options["config"], DeepSpeedOptions(**options).model_dump()), scenario)
    assert given["zero_optimization"] == content["zero_optimization"]
    assert given["bf16"] == {"enabled": True}
    assert given["train_batch_size"] == scenario.train.global_batch_size
    assert "optimizer" not in given
    assert taken.fingerprint(experiment()) == content


@pytest.mark.parametrize(
    "options, work, said",
    [
        ({"stage": 1}, {"train": {"precision": "fp16-autocast"}}, "fp16-autocast needs"),
        ({"stage": 0}, MASTER, "stage 0 keeps no float32 weights"),
        (
            {},
            {"optimizer": {"use": "sgd", "optimizer_in_backward": True}},
            "take optimizer_in_backward out",
        ),
    ],
)
def test_what_deepspeed_cannot_train_so_is_a_reason(
    options: dict[str, Any], work: dict[str, Any], said: str
) -> None:
    (found,) = plugin(**options).check_scenario(experiment(**work), make_machine())
    assert said in found


@pytest.mark.parametrize(
    "options, device, kept",
    [
        ({"stage": 0}, "cpu", {"optimizer state": 1, "gradients": 1, "weights": 1}),
        ({"stage": 1}, "cpu", {"optimizer state": 1 / 2, "gradients": 1, "weights": 1}),
        ({}, "cpu", {"optimizer state": 1 / 2, "gradients": 1 / 2, "weights": 1}),
        ({"stage": 3}, "cpu", {"optimizer state": 1 / 2, "gradients": 1 / 2, "weights": 1 / 2}),
        (
            {"stage": 3, "offload_optimizer": True, "offload_parameters": True},
            "cuda",
            {"optimizer state": 0, "gradients": 1 / 2, "weights": 0},
        ),
    ],
)
def test_each_stage_keeps_its_parts_of_the_memory(
    options: dict[str, Any], device: str, kept: dict[str, float]
) -> None:
    scenario = experiment(resources={"devices": 2, "device": device}).scenario
    assert plugin(**options).fraction_per_device(scenario) == kept


def test_the_plan_counts_what_each_rank_keeps(tmp_path: Path) -> None:
    """Weights, gradients and AdamW's state in float32: 4 + 4 + 8 bytes a parameter, twice."""
    path = tmp_path / "sizes.yaml"
    stacks = {"ddp": [], **{str(n): [{"use": "deepspeed", "stage": n}] for n in (1, 2, 3)}}
    resources = {"device": "cpu", "devices": 2}
    path.write_text(
        json.dumps(
            {"name": "sizes", "model": {"id": "gpt2"}, "resources": resources, "stacks": stacks}
        )
    )
    planned = make_plan(read_draft(path), this_machine(), PlanRequest(oversubscribe=True)).planned
    needs = {one.experiment.stack.name: one.need for one in planned}
    bytes_each = {name: n.total_bytes / n.parameters for name, n in needs.items() if n is not None}
    assert bytes_each == {"ddp": 32, "1": 24, "2": 20, "3": 16}


@pytest.mark.parametrize(
    "options, said",
    [
        ({"stage": 2, "offload_parameters": True}, "offload_parameters needs stage: 3"),
        ({"stage": 0, "offload_optimizer": True}, "offload_optimizer needs a stage of 1 or more"),
    ],
)
def test_offload_without_its_stage_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        DeepSpeedOptions(**options)

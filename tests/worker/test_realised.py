"""Gradient flow and the realised state, on real models with real faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from accel_bench import Device, Experiment, Run, Scenario
from accel_bench.errors import InvalidRunError
from accel_bench.scenario.models import Stack
from accel_bench.worker.gradient_flow import FirstStepProbe
from accel_bench.worker.realised import differences, read_realised

Model = torch.nn.Sequential


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Run]:
    def build(model: torch.nn.Module, lr: float = 0.1, **settings: Any) -> Run:
        scenario = Scenario.model_validate_json(
            json.dumps({"resources": {"device": "cpu"}, **settings})
        )
        experiment = Experiment(id="x", scenario=scenario, stack=Stack(name="s"), identity={})
        run = Run(experiment, Device("cpu"), tmp_path, tmp_path, world_size=scenario.world_size)
        run.model = run.unwrapped_model = model
        trained = [p for p in model.parameters() if p.requires_grad]
        run.optimizer = torch.optim.SGD(trained, lr=lr) if trained else None
        return run

    return build


def model() -> Model:
    torch.manual_seed(0)
    return Model(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))


def step(run: Run) -> FirstStepProbe:
    probe = FirstStepProbe(run)
    try:
        run.model(torch.ones(3, 4)).sum().backward()
        run.optimizer.step()
    finally:
        probe.remove()
    return probe


def test_a_step_that_trains_passes_and_its_gradient_norms_are_kept(make: Any) -> None:
    run = make(model())
    probe = step(run)
    probe.check()
    assert set(probe.findings["gradient_norms"]) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert all(norm > 0 for norm in probe.findings["gradient_norms"].values())
    assert probe.findings["parameters_changed"] is True
    assert probe.matmul_dtype == "float32"


def test_a_module_without_gradient_is_named(make: Any) -> None:
    cut = model()
    cut[1].register_forward_hook(lambda module, inputs, output: output.detach())
    with pytest.raises(InvalidRunError, match=r"the gradient is cut: 1 trained modules .*: 0"):
        step(make(cut))


def test_lora_is_one_unit_since_its_first_matrix_is_rightly_zero(make: Any) -> None:
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(model(), LoraConfig(target_modules=["0", "2"], r=2))
    probe = step(make(adapted))
    probe.check()
    zero = [name for name, norm in probe.findings["gradient_norms"].items() if not norm]
    assert zero and all("lora_A" in name for name in zero)


def test_a_cut_before_an_adapter_is_found(make: Any) -> None:
    from peft import LoraConfig, get_peft_model

    cut = model()
    cut[1].register_forward_hook(lambda module, inputs, output: output.detach())
    adapted = get_peft_model(cut, LoraConfig(target_modules=["0", "2"], r=2))
    with pytest.raises(InvalidRunError, match="the gradient is cut"):
        step(make(adapted))


def test_a_step_that_changes_nothing_is_invalid(make: Any) -> None:
    with pytest.raises(InvalidRunError, match="changed none of the 8 weights"):
        step(make(model(), lr=0.0))


def test_frozen_parameters_need_no_gradient(make: Any) -> None:
    half = model()
    half[0].requires_grad_(False)
    probe = step(make(half))
    assert probe.findings["trained_tensors"] == 2


def test_without_an_optimizer_step_the_run_is_invalid(make: Any) -> None:
    probe = FirstStepProbe(make(model()))
    probe.remove()
    with pytest.raises(InvalidRunError, match="no optimizer took a step"):
        probe.check()


def test_the_probe_is_gone_after_the_first_step(make: Any) -> None:
    run = make(model())
    probe = step(run)
    first = dict(probe.findings["gradient_norms"])
    run.optimizer.zero_grad()
    (run.model(torch.ones(3, 4)).sum() * 100).backward()
    run.optimizer.step()
    assert probe.findings["gradient_norms"] == first


def test_what_holds_is_read_back(make: Any) -> None:
    run = make(model().to(torch.bfloat16))
    realised = read_realised(run)
    assert realised["trained_dtypes"] == {"bfloat16": 30}
    assert realised["optimizer"] == "SGD"
    assert (realised["strategy"], realised["world_size"]) == ("none", 1)
    assert json.dumps(realised)


def test_a_dtype_that_was_not_asked_for_is_a_reason(make: Any) -> None:
    run = make(model().to(torch.bfloat16))
    degraded, invalid = differences(run, read_realised(run))
    assert degraded == ["no weight is float32, as asked: bfloat16"]
    assert not invalid


def test_checkpointing_that_is_asked_for_and_not_on_is_a_reason(make: Any) -> None:
    run = make(model(), train={"gradient_checkpointing": True})
    degraded, _ = differences(run, read_realised(run))
    assert degraded == ["gradient checkpointing is False, asked was True"]


def test_one_process_where_two_were_asked_for_is_invalid(make: Any) -> None:
    run = make(model(), resources={"device": "cpu", "devices": 2})
    _, invalid = differences(run, read_realised(run))
    assert "1 processes train, asked were 2" in invalid
    assert "nothing joins the gradients of 2 processes" in invalid


def test_a_model_in_evaluation_mode_is_invalid(make: Any) -> None:
    run = make(model().eval())
    _, invalid = differences(run, read_realised(run))
    assert invalid == ["the model is not in training mode"]


class Tied(torch.nn.Module):
    """An embedding and an output projection that share their weights, as in gpt2."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(4, 4)
        self.output = torch.nn.Linear(4, 4, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(self.embedding(x.long().clamp(0, 3)))  # type: ignore[no-any-return]


def test_tied_weights_are_one_tensor_that_both_modules_train(make: Any) -> None:
    probe = step(make(Tied()))
    assert probe.findings["modules_without_gradient"] == []
    assert list(probe.findings["gradient_norms"]) == ["embedding.weight"]


def test_an_update_that_large_weights_round_away_is_seen_in_a_small_one(make: Any) -> None:
    """In bfloat16 a step of 1e-4 changes nothing beside 1, and something beside 1e-3."""
    layer = torch.nn.Linear(4, 2, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.weight[1, 3] = 1e-3
    run = make(Model(layer), lr=3e-5)
    probe = FirstStepProbe(run)
    run.model(torch.ones(3, 4, dtype=torch.bfloat16)).sum().backward()
    run.optimizer.step()
    assert probe.findings["parameters_changed"] is True

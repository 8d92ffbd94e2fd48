"""Gradient flow and the effective state, on real models with real faults."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from accel_bench import Device, Experiment, Options, Run, Scenario, Task
from accel_bench.errors import InvalidRunError
from accel_bench.modeling.kept_elsewhere import KeptElsewhere, ShownGradient, keep_elsewhere
from accel_bench.scenario.environment import recorded
from accel_bench.scenario.models import Stack
from accel_bench.worker.verify.effective import differences, environment_changes, read_effective
from accel_bench.worker.verify.gradient_flow import FirstStepProbe

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
    assert set(probe.flow.gradient_norms) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert all(norm > 0 for norm in probe.flow.gradient_norms.values())
    assert probe.flow.parameters_changed is True
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
    zero = [name for name, norm in probe.flow.gradient_norms.items() if not norm]
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
        step(make(model(), lr=1e-30))


@pytest.mark.parametrize("rate", [0.0, torch.tensor(0.0)])
def test_the_first_step_is_the_first_one_with_a_learning_rate(make: Any, rate: Any) -> None:
    run = make(model(), lr=rate)
    probe = FirstStepProbe(run)
    for now, taken in ((rate, False), (0.1, True)):
        run.optimizer.param_groups[0]["lr"] = now
        run.model(torch.ones(3, 4)).sum().backward()
        run.optimizer.step()
        assert (probe.flow is not None) is taken and probe.idle is not taken
        if not taken:
            with pytest.raises(InvalidRunError, match="with a learning rate other than"):
                probe.check()
    probe.check()
    probe.remove()


def test_the_optimizer_of_another_model_is_not_looked_at(make: Any) -> None:
    run, other = make(model()), model()
    foreign = torch.optim.SGD(other.parameters(), lr=0.1)
    probe = FirstStepProbe(run)
    for optimizer in (foreign, run.optimizer, foreign):
        other(run.model(torch.ones(3, 4)).repeat(1, 2)).sum().backward()
        optimizer.step()
        assert (probe.flow is None) is (not probe.optimizers)
    assert list(probe.optimizers.values()) == [run.optimizer]
    assert probe.flow.parameters_changed
    probe.remove()


def test_an_optimizer_of_flat_or_copied_parameters_is_the_models(make: Any) -> None:
    run = make(flat := model())
    values = torch.nn.Parameter(torch.nn.utils.parameters_to_vector(flat.parameters()).detach())
    torch.nn.utils.vector_to_parameters(values, flat.parameters())
    values.grad = torch.ones_like(values)
    probe = FirstStepProbe(run)
    flat(torch.ones(3, 4)).sum().backward()
    torch.optim.SGD([values], lr=0.1).step()
    assert probe.flow.parameters_changed
    probe.remove()
    run = make(stored := model())
    copies = [p.detach().clone().requires_grad_() for p in stored.parameters()]
    for parameter, copy in zip(stored.parameters(), copies, strict=True):
        parts = parameter.shape, parameter.dtype, "ZeRO-1 over 2", parameter.numel(), 2
        shown = ShownGradient(1.0, frozenset({0}))
        keep_elsewhere(parameter, KeptElsewhere(*parts, lambda copy=copy: copy, shown))
        copy.grad = torch.ones_like(copy)
    probe = FirstStepProbe(run)
    torch.optim.SGD(copies, lr=0.1).step()
    assert probe.flow.parameters_changed
    probe.remove()


def test_frozen_parameters_need_no_gradient(make: Any) -> None:
    half = model()
    half[0].requires_grad_(False)
    probe = step(make(half))
    assert probe.flow.trained_tensors == 2


def test_without_an_optimizer_step_the_run_is_invalid(make: Any) -> None:
    probe = FirstStepProbe(make(model()))
    probe.remove()
    with pytest.raises(InvalidRunError, match="no optimizer took a step"):
        probe.check()


def test_the_probe_is_gone_after_the_first_step(make: Any) -> None:
    run = make(model())
    probe = step(run)
    first = dict(probe.flow.gradient_norms)
    run.optimizer.zero_grad()
    (run.model(torch.ones(3, 4)).sum() * 100).backward()
    run.optimizer.step()
    assert probe.flow.gradient_norms == first


def test_what_holds_is_read_back(make: Any) -> None:
    run = make(model().to(torch.bfloat16))
    effective = read_effective(run)
    assert effective.trained_dtypes == {"bfloat16": 30}
    assert effective.optimizer == "SGD"
    assert (effective.strategy, effective.world_size) == ("none", 1)
    assert effective.model_dump_json()


class Drawing(Task[Options]):
    """Draws at random what a model says."""

    Options = Options

    def random_operations(self, model: Any) -> str:
        return str(model.draws)


@pytest.mark.parametrize("drawn", ["Gumbel noise", ""])
def test_what_a_task_draws_at_random_is_read_back(make: Any, drawn: str) -> None:
    run = make(model())
    run.model.draws = drawn
    run.task = Drawing(Options())
    assert read_effective(run).drawn == drawn
    run.model.append(torch.nn.Dropout(0.1))
    assert read_effective(run).drawn == (f"dropout and {drawn}" if drawn else "dropout")


def test_a_dtype_that_was_not_asked_for_is_a_reason(make: Any) -> None:
    run = make(model().to(torch.bfloat16))
    degraded, invalid = differences(run, read_effective(run))
    assert degraded == ["no weight is float32, as asked: bfloat16"]
    assert not invalid


def test_another_precision_of_matmuls_is_a_reason(make: Any) -> None:
    run = make(model(), train={"matmul_precision": "high"})
    degraded, _ = differences(run, read_effective(run))
    assert degraded == ["matmul precision is highest, the scenario says high"]


def test_another_number_of_threads_than_the_scenario_s_is_a_reason(make: Any) -> None:
    asked = torch.get_num_threads() + 1
    run = make(model(), resources={"device": "cpu", "threads": asked})
    degraded, _ = differences(run, read_effective(run))
    assert degraded == [f"{asked - 1} threads compute, the scenario says {asked}"]


def test_checkpointing_that_is_asked_for_and_not_on_is_a_reason(make: Any) -> None:
    run = make(model(), train={"gradient_checkpointing": True})
    degraded, _ = differences(run, read_effective(run))
    assert degraded == ["gradient checkpointing is False, the scenario says True"]


def test_one_process_where_two_were_asked_for_is_invalid(make: Any) -> None:
    run = make(model(), resources={"device": "cpu", "devices": 2})
    _, invalid = differences(run, read_effective(run))
    assert "1 processes train, the scenario says 2" in invalid
    assert "nothing joins the gradients of 2 processes" in invalid


def test_data_parallel_in_one_process_is_invalid(make: Any) -> None:
    run = make(model())
    run.model = torch.nn.DataParallel(run.unwrapped_model)
    _, invalid = differences(run, read_effective(run))
    assert invalid == ["DataParallel spreads each batch over every device that the process can see"]


def mixture(experts: str) -> torch.nn.Module:
    """A Mixtral of one layer in float32, in training mode."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=2,
        vocab_size=8,
        bos_token_id=1,
        eos_token_id=2,
        use_cache=False,
        experts_implementation=experts,
    )
    found: torch.nn.Module = MixtralForCausalLM(config)
    return found.train()


@pytest.mark.parametrize("experts", ["eager", "batched_mm", "grouped_mm"])
def test_how_experts_multiply_is_read_back(make: Any, experts: str) -> None:
    mixed = mixture(experts)
    assert read_effective(make(mixed)).experts == experts
    layer = mixed.get_submodule("model.layers.0.mlp.experts")
    vars(layer)["forward"] = lambda hidden, chosen, weights: hidden
    assert read_effective(make(mixed)).experts == "replaced"
    assert read_effective(make(model())).experts is None


@pytest.mark.parametrize("experts, reasons", [("eager", 0), ("batched_mm", 0), ("grouped_mm", 1)])
def test_experts_that_do_not_follow_autocast_are_a_reason(
    make: Any, experts: str, reasons: int
) -> None:
    run = make(mixture(experts), train={"precision": "bf16-autocast"})
    degraded, invalid = differences(run, read_effective(run))
    assert len(degraded) == reasons
    assert all(
        reason.startswith("experts compute in float32, the scenario says") for reason in degraded
    )
    assert not invalid


def test_a_model_in_evaluation_mode_is_invalid(make: Any) -> None:
    run = make(model().eval())
    _, invalid = differences(run, read_effective(run))
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
    assert probe.flow.modules_without_gradient == ()
    assert list(probe.flow.gradient_norms) == ["embedding.weight"]


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
    assert probe.flow.parameters_changed is True


class Expert(torch.nn.Module):
    """One expert, which adds its own part."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x)  # type: ignore[no-any-return]


class Mixture(torch.nn.Module):
    """Three experts, of which the router chooses the given ones; a chosen one may be cut off."""

    def __init__(self, chosen: tuple[int, ...], cut: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.block = torch.nn.ModuleDict({"experts": torch.nn.ModuleList([Expert()] * 0)})
        self.block["experts"] = torch.nn.ModuleList(Expert() for _ in range(3))
        self.chosen, self.cut = chosen, cut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = []
        for number, expert in enumerate(self.block["experts"]):  # type: ignore[arg-type]
            part = expert(x if number in self.chosen else x[:0])
            parts.append(part.detach() if number == self.cut else part)
        return torch.cat(parts)


def test_an_expert_without_tokens_needs_no_gradient(make: Any) -> None:
    probe = step(make(Mixture(chosen=(0, 2))))
    probe.check()
    assert probe.flow.experts_without_tokens == ("block.experts.1.up",)
    assert probe.flow.modules_without_gradient == ()


def test_an_expert_that_has_tokens_and_no_gradient_is_cut(make: Any) -> None:
    with pytest.raises(InvalidRunError, match=r"1 trained modules .*: block.experts.2.up"):
        step(make(Mixture(chosen=(0, 2), cut=2)))


def test_what_is_found_is_kept_when_the_run_is_invalid(make: Any) -> None:
    probe = FirstStepProbe(make(Mixture(chosen=(0, 2), cut=2)))
    with pytest.raises(InvalidRunError):
        step(probe._run)
    assert probe.flow.gradient_norms["block.experts.0.up.weight"] > 0
    probe.remove()


def test_compiled_experts_are_not_watched_and_an_idle_one_is_still_none_of_the_cut(
    make: Any,
) -> None:
    mixture = Mixture(chosen=(0, 2))
    mixture.block["experts"][0].compile(backend="eager")  # type: ignore[index]
    probe = step(make(mixture))
    assert probe.flow.experts_without_tokens == ("block.experts.1.up",)
    torch.compiler.reset()


def test_linear_layers_are_counted_by_class_without_the_adapters_own(make: Any) -> None:
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(model(), LoraConfig(target_modules=["0", "2"], r=2))
    assert read_effective(make(adapted)).linear_kernels == {"Linear": 2}


def test_backends_that_attention_may_use_are_read_back(make: Any) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    run = make(model())
    assert {"flash", "math"} <= set(read_effective(run).attention_backends)
    with sdpa_kernel(SDPBackend.MATH):
        assert read_effective(run).attention_backends == ("math",)


def test_what_the_compiler_did_is_read_back(make: Any) -> None:
    from accel_bench import reset_compiler

    reset_compiler()
    run = make(Tied())
    run.model.compile(backend="eager")
    step(run)
    found = read_effective(run).compilation
    assert (found.graphs, found.graph_breaks, found.recompiles) == (1, 0, 0)
    assert found.compile_seconds > 0
    run.model._compiled_call_impl = None
    torch.compiler.reset()


def test_a_model_that_torch_compile_wrapped_is_not_looked_into(make: Any) -> None:
    """A hook inside would be compiled, and compiled again without it when it goes."""
    wrapped = torch.compile(model(), backend="eager")
    probe = step(make(wrapped))
    assert probe.matmul_dtype is None
    torch.compiler.reset()


def test_a_variable_that_changed_after_the_start_is_recorded(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    before = recorded(os.environ)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:256")
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setenv("A_SECRET", "x")
    changes = environment_changes(before)
    assert changes == {
        "OMP_WAIT_POLICY": (None, "passive"),
        "PYTORCH_ALLOC_CONF": ("expandable_segments:True", "max_split_size_mb:256"),
    }
    run = make(model())
    degraded, invalid = differences(run, read_effective(run, environment=before))
    assert [reason.partition(" was ")[0] for reason in degraded] == ["PYTORCH_ALLOC_CONF"]
    assert invalid == []


def test_the_backend_is_the_one_word_of_the_runs_device(make: Any) -> None:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("cpu:gloo", rank=0, world_size=1, store=store)
    try:
        effective = read_effective(make(model()))
    finally:
        torch.distributed.destroy_process_group()
    assert effective.backend == "gloo"
    for asked, reasons in (
        ("gloo", []),
        ("ucc", ["the process group uses gloo, the scenario says ucc"]),
    ):
        run = make(model(), resources={"device": "cpu", "backend": asked})
        assert differences(run, effective)[1] == reasons

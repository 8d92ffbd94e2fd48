"""The `lora` plugin: seeded adapters on modules that exist, over a frozen base."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from accel_bench_huggingface.loader import HuggingFace
from accel_bench_huggingface.lora import Lora, LoraOptions

from accel_bench import Options, Run
from accel_bench.errors import ScenarioError
from accel_bench.testing import evidence_of

SMALL = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "head_dim": 8}
MakeRun = Callable[..., Run]


def plugin(**options: Any) -> Lora:
    return Lora(LoraOptions.model_validate_json(json.dumps(options)))


def base(make_run: MakeRun, **scenario: Any) -> Run:
    run = make_run(**{"model": {"overrides": SMALL}, **scenario})
    run.model = HuggingFace(Options()).load_model(run)
    return run


def trained(model: Any) -> dict[str, torch.Tensor]:
    return {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}


def test_only_the_adapters_train_and_evidence_counts_them(make_run: MakeRun) -> None:
    run, lora = base(make_run), plugin(r=4, target_modules=["q_proj", "o_proj"])
    run.model = lora.add_adapter(run)
    parameters = trained(run.model)
    assert all("lora_" in name for name in parameters)
    expected = {
        "r": 4,
        "adapted_modules": 4,
        "trainable_parameters": 4 * (32 * 4 + 4 * 32),
        "adapter_dtypes": ["float32"],
    }
    assert {key: evidence_of(run)[key] for key in expected} == expected
    assert run.model.training


def test_the_same_seed_gives_the_same_adapters_and_another_seed_gives_others(
    make_run: MakeRun,
) -> None:
    one, same, other = (
        trained(plugin().add_adapter(base(make_run, train={"seed": seed}))) for seed in (0, 0, 1)
    )
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_adding_adapters_leaves_the_random_state_as_it_was(make_run: MakeRun) -> None:
    run = base(make_run)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    plugin().add_adapter(run)
    assert torch.equal(torch.rand(3), expected)


def test_the_default_targets_are_those_of_peft_for_the_architecture(make_run: MakeRun) -> None:
    names = trained(plugin().add_adapter(base(make_run)))
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in names} == {"q_proj", "v_proj"}


def test_all_linear_adapts_every_linear_module_but_the_output_layer(make_run: MakeRun) -> None:
    run, lora = base(make_run), plugin(target_modules="all-linear")
    names = trained(lora.add_adapter(run))
    assert evidence_of(run)["adapted_modules"] == 2 * 7
    assert not any("lm_head" in name for name in names)


def test_targets_may_stand_in_one_text() -> None:
    assert plugin(target_modules="q_proj  v_proj").options.target_modules == ("q_proj", "v_proj")
    assert plugin(target_modules="all-linear").options.target_modules == "all-linear"


@pytest.mark.parametrize("targets", [["q_porj"], ["q_proj", "q_porj"]])
def test_a_target_that_matches_nothing_is_refused_with_the_modules_that_exist(
    make_run: MakeRun, targets: list[str]
) -> None:
    with pytest.raises(ScenarioError, match=r"'q_porj'; did you mean 'q_proj'.*down_proj.*v_proj"):
        plugin(target_modules=targets).add_adapter(base(make_run))


def test_no_targets_at_all_are_refused(make_run: MakeRun) -> None:
    with pytest.raises(ScenarioError, match=r"\(linear modules: "):
        plugin(target_modules=[]).add_adapter(base(make_run))


def test_an_architecture_that_peft_has_no_targets_for_is_adapted_everywhere(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, lora = base(make_run), plugin()
    monkeypatch.setattr(type(run.model.config), "model_type", "homemade")
    lora.add_adapter(run)
    assert evidence_of(run)["adapted_modules"] == 2 * 7


@pytest.mark.parametrize(("autocast", "dtype"), [(True, "float32"), (False, "bfloat16")])
def test_adapters_of_a_half_precision_base_are_float32_unless_told_otherwise(
    make_run: MakeRun, autocast: bool, dtype: str
) -> None:
    run = base(make_run, model={"dtype": "bfloat16", "overrides": SMALL})
    lora = plugin(autocast_adapter_dtype=autocast)
    lora.add_adapter(run)
    assert evidence_of(run)["adapter_dtypes"] == [dtype]


def test_transposed_layers_are_adapted_too(make_run: MakeRun) -> None:
    sizes = {"n_layer": 2, "n_embd": 24, "n_positions": 512}
    run = base(make_run, model={"id": "gpt2", "overrides": sizes})
    lora = plugin(target_modules=["c_attn"])
    lora.add_adapter(run)
    assert evidence_of(run)["adapted_modules"] == 2


def test_adapters_do_nothing_at_first_and_receive_a_gradient(make_run: MakeRun) -> None:
    run = base(make_run)
    tokens = torch.arange(64).reshape(2, 32)
    before = run.model(input_ids=tokens, labels=tokens).loss
    model = plugin().add_adapter(run)
    after = model(input_ids=tokens, labels=tokens, num_items_in_batch=62).loss
    assert torch.allclose(before, after)
    after.backward()
    moved = [name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()]
    assert moved
    assert all("lora_B" in name for name in moved)


def test_the_alpha_scales_what_adapters_add(make_run: MakeRun) -> None:
    model = plugin(r=4, alpha=8).add_adapter(base(make_run))
    scales = {m.scaling["default"] for m in model.modules() if hasattr(m, "lora_A")}
    assert scales == {2.0}


def drawn(model: Any) -> dict[str, torch.Tensor]:
    """The matrices of adapters that are not zero at first."""
    return {name: p.detach() for name, p in model.named_parameters() if "lora_" in name and p.any()}


def test_adapters_do_not_depend_on_what_was_drawn_before(make_run: MakeRun) -> None:
    found = []
    for state in (1, 2):
        run = base(make_run)
        torch.manual_seed(state)
        found.append(drawn(plugin(r=2, target_modules=("embed_tokens", "q_proj")).add_adapter(run)))
    first, second = found
    assert any("lora_embedding_B" in name for name in first)
    assert all(torch.equal(first[name], second[name]) for name in first)


class Own(torch.nn.Linear):
    """A linear of a class of its own, which PEFT adapts in its turn with the others."""


def test_a_base_of_another_class_gets_the_same_adapters(make_run: MakeRun) -> None:
    plain, other = base(make_run), base(make_run)
    for layer in other.model.model.layers:
        layer.self_attn.q_proj.__class__ = Own
    names = ("v_proj", "q_proj")
    first, second = (drawn(plugin(target_modules=names).add_adapter(r)) for r in (plain, other))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


class LinearAttention(torch.nn.Module):
    """A container that is called after linear attention, and multiplies nothing itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)


def test_all_linear_takes_no_container_for_a_linear(make_run: MakeRun) -> None:
    run = base(make_run)
    run.model.model.layers[0].extra = LinearAttention()
    adapted = plugin(target_modules="all-linear").add_adapter(run)
    names = adapted.base_model.targeted_module_names
    assert "model.layers.0.extra.inner" in names
    assert "model.layers.0.extra" not in names

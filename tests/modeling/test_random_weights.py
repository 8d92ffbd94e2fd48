"""Weights made block by block: the same ones for every stack, whoever replaces what."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from kit import shrunk
from torch import nn
from transformers import AutoModelForCausalLM

from accel_bench import Run, load_base_model
from accel_bench.catalog.models import list_cards
from accel_bench.errors import ScenarioError
from accel_bench.modeling import loading, random_weights
from accel_bench.scenario.uses import ModelUse

MakeRun = Callable[..., Run]

TINY = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "vocab_size": 96,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
"""Sizes that each architecture of the catalog has, by one of its names."""

TINY_WHERE_THERE = {
    "ffn_dim": 96,
    "intermediate_size": 96,
    "n_inner": 96,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "pad_token_id": 0,
    "word_embed_proj_dim": 64,
}
"""Sizes that some of them have."""

ONE_OF_EACH = {card.architecture: name for name, card in sorted(list_cards().items())}
"""A model of every architecture of the catalog."""


def tiny_config(name: str) -> Any:
    """The configuration of a model of the catalog, made small."""
    card = list_cards()[name]
    if card.family != "text-generation":
        return loading.build_config(ModelUse(id=name, overrides=shrunk(name)))
    published = card.config
    others = {key: size for key, size in TINY_WHERE_THERE.items() if key in published}
    if "n_embd" in published:
        others["n_inner"] = 96
    return loading.build_config(ModelUse(id=name, overrides=TINY | others))


def tiny_run(make_run: MakeRun, **train: Any) -> Run:
    overrides = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "head_dim": 8}
    return make_run(model={"overrides": overrides}, train=train)


def test_the_generator_of_the_cpu_alone_draws_what_it_draws_when_all_are_seeded() -> None:
    torch.manual_seed(7)
    wanted = torch.randn(3)
    random_weights.seed_generators(7, {"cpu"})
    assert torch.equal(torch.randn(3), wanted)
    random_weights.seed_generators(7, {"cpu", "cuda"})
    assert torch.equal(torch.randn(3), wanted)


@pytest.mark.parametrize("name", sorted(ONE_OF_EACH.values()))
def test_a_model_made_in_blocks_is_what_transformers_makes_at_once(name: str) -> None:
    """But for the numbers drawn: names, shapes, ties, buffers, and how the numbers are spread."""
    config, kind = tiny_config(name), list_cards()[name].model_class
    ours, _ = random_weights.random_model(config, torch.float32, "cpu", 0, model_class=kind)
    torch.manual_seed(0)
    theirs = getattr(transformers, kind).from_config(config, dtype=torch.float32)
    mine, reference = dict(ours.named_parameters()), dict(theirs.named_parameters())
    assert list(mine) == list(reference)
    if kind == random_weights.MODEL_CLASS:
        assert ours.get_output_embeddings().weight is mine.get(
            "lm_head.weight", ours.get_input_embeddings().weight
        )
    for key, parameter in mine.items():
        other = reference[key]
        assert (parameter.shape, parameter.dtype) == (other.shape, other.dtype)
        if parameter.numel() == 1:
            assert torch.equal(parameter, other), key
            continue
        mean, std, error = other.mean().item(), other.std().item(), parameter.numel() ** -0.5
        assert parameter.mean().item() == pytest.approx(mean, abs=6 * std * error + 1e-6), key
        assert parameter.std().item() == pytest.approx(std, rel=5 * error, abs=1e-6), key
    buffers, expected = dict(ours.named_buffers()), dict(theirs.named_buffers())
    assert list(buffers) == list(expected)
    assert all(torch.equal(buffers[key], expected[key]) for key in buffers)


def test_what_replaces_modules_gets_the_weights_that_the_others_keep(make_run: MakeRun) -> None:
    plain = load_base_model(tiny_run(make_run))
    offered: dict[str, torch.Tensor] = {}

    def replace(name: str, module: nn.Module) -> nn.Module | None:
        if not isinstance(module, nn.Linear):
            return None
        offered[name] = module.weight.detach().clone()
        return nn.Identity()

    run = tiny_run(make_run)
    replaced = load_base_model(run, replace)
    linears = {n: m for n, m in plain.named_modules() if isinstance(m, nn.Linear)}
    assert offered.keys() == linears.keys() - {"lm_head"}
    assert all(torch.equal(offered[name], linears[name].weight) for name in offered)
    assert all(isinstance(replaced.get_submodule(name), nn.Identity) for name in offered)
    assert torch.equal(replaced.lm_head.weight, plain.lm_head.weight)
    untouched = tiny_run(make_run)
    load_base_model(untouched)
    assert run.weights_fingerprint == untouched.weights_fingerprint


def test_no_more_than_one_block_is_whole_while_modules_are_replaced(make_run: MakeRun) -> None:
    met: list[weakref.ref[nn.Parameter]] = []
    alive: list[int] = []

    def replace(name: str, module: nn.Module) -> nn.Module | None:
        met.append(weakref.ref(module.weight))
        alive.append(sum(found() is not None for found in met))
        return nn.Identity()

    load_base_model(tiny_run(make_run), replace)
    assert len(met) == 2 * 9
    assert max(alive) == 9  # One block of a llama: q, k, v, o, gate, up, down, and two norms.


def test_what_replaces_a_module_may_hold_anything(make_run: MakeRun) -> None:
    """Packed bits can look like no number, and need not be asked."""

    def replace(name: str, module: nn.Module) -> nn.Module:
        module.weight = nn.Parameter(torch.full_like(module.weight, torch.nan))
        return nn.Sequential(module)

    model = load_base_model(tiny_run(make_run), replace)
    assert model.model.layers[1].mlp.up_proj[0].weight.isnan().all()


def test_saved_weights_are_replaced_block_by_block_too(make_run: MakeRun, tmp_path: Any) -> None:
    saved = load_base_model(tiny_run(make_run))
    saved.save_pretrained(tmp_path / "saved")
    seen: dict[str, torch.Tensor] = {}
    run = make_run(model={"id": str(tmp_path / "saved"), "weights": "pretrained"})

    def note(name: str, module: nn.Module) -> None:
        seen[name] = module.weight.detach()

    load_base_model(run, note)
    assert len(seen) == 2 * 9
    for name, weight in seen.items():
        assert torch.equal(weight, saved.get_submodule(name).weight)
    assert len(run.weights_fingerprint) == 16


def test_a_module_has_the_same_weights_whatever_else_is_in_the_model(make_run: MakeRun) -> None:
    config = tiny_config("llama-2-7b")
    small, _ = random_weights.random_model(config, torch.float32, "cpu", 0)
    config.vocab_size = 200
    large, _ = random_weights.random_model(config, torch.float32, "cpu", 0)
    assert small.lm_head.weight.shape != large.lm_head.weight.shape
    for part in ("layers.0.self_attn.q_proj", "layers.1.mlp.down_proj"):
        assert torch.equal(
            small.model.get_submodule(part).weight, large.model.get_submodule(part).weight
        )


def test_blocks_of_one_model_have_different_weights() -> None:
    model, _ = random_weights.random_model(tiny_config("llama-2-7b"), torch.float32, "cpu", 0)
    first, second = (layer.self_attn.q_proj.weight for layer in model.model.layers)
    assert not torch.equal(first, second)


class Gate(nn.Module):
    """Holds a parameter that only its constructor fills."""

    def __init__(self) -> None:
        super().__init__()
        self.openness = nn.Parameter(torch.tensor(0.25))


def test_what_only_a_constructor_of_a_block_fills_keeps_its_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers.models.llama.modeling_llama import LlamaMLP

    plain = LlamaMLP.__init__

    def with_gate(self: Any, config: Any) -> None:
        plain(self, config)
        self.gate = Gate()

    monkeypatch.setattr(LlamaMLP, "__init__", with_gate)
    model, fingerprint = random_weights.random_model(
        tiny_config("llama-2-7b"), torch.float32, "cpu", 0
    )
    again, same = random_weights.random_model(tiny_config("llama-2-7b"), torch.float32, "cpu", 0)
    assert [layer.mlp.gate.openness.item() for layer in model.model.layers] == [0.25, 0.25]
    assert fingerprint == same
    assert torch.equal(model.lm_head.weight, again.lm_head.weight)


def test_what_only_a_constructor_fills_outside_of_blocks_is_known_before_anything_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model is made anew, as its constructors fill it, with the weights of other stacks."""
    from transformers.models.llama.modeling_llama import LlamaPreTrainedModel

    fill = LlamaPreTrainedModel._init_weights

    def all_but_embeddings(self: Any, module: nn.Module) -> None:
        if not isinstance(module, nn.Embedding):
            fill(self, module)

    monkeypatch.setattr(LlamaPreTrainedModel, "_init_weights", all_but_embeddings)
    config = tiny_config("llama-2-7b")
    offered: list[str] = []
    replaced, _ = random_weights.random_model(
        config, torch.float32, "cpu", 0, replace=lambda name, _: offered.append(name)
    )
    made, _ = random_weights.random_model(config, torch.float32, "cpu", 0)
    assert len(offered) == len({*offered}) > 0
    assert not made.model.embed_tokens.weight.isnan().any()
    pairs = zip(made.parameters(), replaced.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_what_only_a_constructor_of_a_replaced_block_fills_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers.models.llama.modeling_llama import LlamaPreTrainedModel

    fill = LlamaPreTrainedModel._init_weights

    def but_of_second(self: Any, module: nn.Module) -> None:
        layers = getattr(self, "layers", None) or self.model.layers
        if module is not layers[1].mlp.down_proj:
            fill(self, module)

    monkeypatch.setattr(LlamaPreTrainedModel, "_init_weights", but_of_second)
    config = tiny_config("llama-2-7b")
    with pytest.raises(ScenarioError, match=r"layers\.1\.mlp\.down_proj\.weight uninitialized"):
        random_weights.random_model(config, torch.float32, "cpu", 0, replace=lambda *_: None)


def test_the_padding_token_of_tied_embeddings_stays_zero() -> None:
    config = tiny_config("llama-2-7b")
    config.tie_word_embeddings, config.pad_token_id = True, 5
    model, _ = random_weights.random_model(config, torch.float32, "cpu", 0)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert not model.lm_head.weight[5].any()
    assert model.lm_head.weight[4].any()


def test_of_a_model_with_images_the_blocks_of_both_towers_are_offered() -> None:
    from transformers import Gemma3Config

    config = Gemma3Config(
        text_config={**TINY, "num_key_value_heads": 2, "intermediate_size": 96, "head_dim": 16},
        vision_config={
            **{"num_hidden_layers": 4, "hidden_size": 32, "intermediate_size": 48},
            **{"num_attention_heads": 2, "image_size": 28, "patch_size": 14},
        },
        mm_tokens_per_image=4,
    )
    offered: list[str] = []

    def note(name: str, module: nn.Module) -> None:
        offered.append(name)

    model, _ = random_weights.random_model(config, torch.float32, "cpu", 0, replace=note)
    torch.manual_seed(0)
    theirs = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    towers = {"language_model", "vision_tower"}
    assert {tower for name in offered for tower in towers if tower in name} == towers
    assert all(any(tower in name for tower in towers) for name in offered)
    for name, parameter in model.named_parameters():
        expected = theirs.get_parameter(name)
        error = 5 * parameter.numel() ** -0.5
        std = expected.std().item() if expected.numel() > 1 else 0.0
        assert parameter.detach().std(correction=0).item() == pytest.approx(
            std, rel=error, abs=1e-3
        ), name

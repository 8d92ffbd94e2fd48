"""The `huggingface` loader: the same weights for the same seed, and refusals that help."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accel_bench_huggingface.loader import HuggingFace
from safetensors.torch import load_file, save_file

from accel_bench import Options, Run
from accel_bench.catalog.models import list_cards, read_card
from accel_bench.errors import ScenarioError
from accel_bench.machine.info import GPU
from accel_bench.modeling import loading, random_weights
from accel_bench.scenario.uses import ModelUse
from accel_bench.testing import evidence_of, make_machine

SMALL = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64, "head_dim": 8}
MACHINE = make_machine()
MakeRun = Callable[..., Run]


def load(run: Run) -> Any:
    return HuggingFace(Options()).load_model(run)


@pytest.fixture
def saved(make_run: MakeRun, tmp_path: Path) -> Path:
    """A directory as `save_pretrained` leaves it, of a model of two layers."""
    folder = tmp_path / "saved"
    load(make_run(model={"overrides": {**SMALL, "num_hidden_layers": 2}})).save_pretrained(folder)
    return folder


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def equal(one: Any, other: Any) -> bool:
    left, right = weights(one), weights(other)
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


def reasons(run: Run) -> str:
    """What the plugin says of a scenario, whether it is wrong or only impossible here."""
    try:
        return "\n".join(HuggingFace(Options()).check_scenario(run.experiment, MACHINE))
    except ScenarioError as error:
        return f"wrong: {error}"


def test_the_same_seed_gives_the_same_weights_and_another_seed_gives_others(
    make_run: MakeRun,
) -> None:
    model = {"overrides": SMALL}
    assert equal(load(make_run(model=model)), load(make_run(model=model)))
    assert not equal(load(make_run(model=model)), load(make_run(model=model, train={"seed": 1})))


def test_loading_leaves_the_random_state_as_it_was(make_run: MakeRun) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    load(make_run(model={"overrides": SMALL}))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_are_created_in_the_dtype_asked_and_rotary_frequencies_in_float32(
    make_run: MakeRun, dtype: str
) -> None:
    model = load(make_run(model={"dtype": dtype, "overrides": SMALL}))
    assert {p.dtype for p in model.parameters()} == {getattr(torch, dtype)}
    assert {b.dtype for b in model.buffers()} == {torch.float32}


def test_the_default_model_is_in_train_mode_without_a_cache_and_as_large_as_published(
    make_run: MakeRun,
) -> None:
    model = load(make_run())
    assert model.training
    assert model.config.use_cache is False
    assert loading.count_parameters(model) == read_card("tiny-llama-cpu").parameters


@pytest.mark.parametrize("name", sorted(list_cards()))
def test_the_loader_makes_the_architecture_that_the_card_names(name: str) -> None:
    config = loading.build_config(ModelUse(id=name))
    card = read_card(name)
    model, _ = random_weights.random_model(
        config, torch.bfloat16, "meta", 0, model_class=card.model_class
    )
    assert type(model).__name__ == card.architecture


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_attention_implementation_is_the_one_asked(make_run: MakeRun, attention: str) -> None:
    model = load(make_run(model={"attention": attention, "overrides": SMALL}))
    assert model.config._attn_implementation == attention


def test_overrides_change_the_architecture_in_transformers_common_names_too(
    make_run: MakeRun,
) -> None:
    names = {"num_hidden_layers": 2, "hidden_size": 24, "n_positions": 512}
    model = load(make_run(model={"id": "gpt2", "overrides": names}))
    assert len(model.transformer.h) == 2
    assert model.transformer.wte.embedding_dim == 24


def test_an_override_counts_when_the_published_figure_has_another_name(tmp_path: Path) -> None:
    published = {"model_type": "gpt2", "hidden_size": 24, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(published))
    use = ModelUse(id=str(tmp_path), overrides={"n_embd": 48, "n_head": 4})
    config = loading.build_config(use)
    assert (config.hidden_size, config.num_attention_heads) == (48, 4)


def test_a_published_list_of_layer_types_keeps_its_beginning_for_fewer_layers(
    tmp_path: Path,
) -> None:
    loading.build_config(ModelUse(id="qwen2.5-7b")).save_pretrained(tmp_path)
    assert len(json.loads((tmp_path / "config.json").read_text())["layer_types"]) == 28
    use = ModelUse(id=str(tmp_path), overrides={"num_hidden_layers": 3})
    assert len(loading.build_config(use).layer_types) == 3


def test_an_unknown_override_is_refused_with_the_nearest_key(make_run: MakeRun) -> None:
    with pytest.raises(ScenarioError, match=r"num_hiden_layers.*did you mean 'num_hidden_layers'"):
        load(make_run(model={"overrides": {"num_hiden_layers": 2}}))


@pytest.mark.parametrize("key", ["use_cache", "dtype", "attn_implementation"])
def test_an_override_that_another_setting_owns_is_refused(make_run: MakeRun, key: str) -> None:
    with pytest.raises(ScenarioError, match=rf"model\.overrides\.{key} cannot be set here"):
        load(make_run(model={"overrides": {key: True}}))


@pytest.mark.parametrize("overrides", [{"hidden_size": "big"}, {"hidden_size": 130}])
def test_overrides_that_make_no_model_are_refused(
    make_run: MakeRun, overrides: dict[str, Any]
) -> None:
    with pytest.raises(ScenarioError, match="no possible configuration"):
        load(make_run(model={"overrides": overrides}))


def test_a_vocabulary_smaller_than_that_of_the_data_is_refused(make_run: MakeRun) -> None:
    run = make_run(model={"overrides": SMALL})
    run.dataset = SimpleNamespace(vocab_size=2049)
    with pytest.raises(ScenarioError, match=r"2049 tokens.*one of 2048.*overrides\.vocab_size"):
        load(run)
    run.dataset = SimpleNamespace(vocab_size=2048)
    load(run)


def test_more_tokens_than_learned_positions_are_refused(make_run: MakeRun) -> None:
    with pytest.raises(ScenarioError, match=r"2000.*1024 learned positions"):
        load(make_run(model={"id": "gpt2"}, data={"sequence_length": 2000}))


def test_rotary_positions_go_on_beyond_the_published_length(make_run: MakeRun) -> None:
    model = load(make_run(model={"overrides": SMALL}, data={"sequence_length": 4096}))
    assert model.config.max_position_embeddings < 4096


def test_a_saved_model_loads_with_the_same_weights(make_run: MakeRun, saved: Path) -> None:
    original = load(make_run(model={"overrides": {**SMALL, "num_hidden_layers": 2}}))
    again = load(make_run(model={"id": str(saved), "weights": "pretrained"}, train={"seed": 5}))
    assert equal(original, again)
    assert again.training
    assert again.config.use_cache is False


def test_a_directory_gives_only_its_architecture_when_weights_are_random(
    make_run: MakeRun, saved: Path
) -> None:
    (saved / "model.safetensors").unlink()
    model = load(make_run(model={"id": str(saved)}, train={"seed": 5}))
    assert len(model.model.layers) == 2


def test_fewer_layers_than_were_saved_take_the_first_ones(make_run: MakeRun, saved: Path) -> None:
    use = {"id": str(saved), "weights": "pretrained"}
    whole = weights(load(make_run(model=use)))
    part = weights(load(make_run(model={**use, "overrides": {"num_hidden_layers": 1}})))
    assert set(part) < set(whole)
    assert all(torch.equal(part[name], whole[name]) for name in part)


def test_weights_that_are_not_in_the_files_are_not_made_up(make_run: MakeRun, saved: Path) -> None:
    use = {"id": str(saved), "weights": "pretrained", "overrides": {"num_hidden_layers": 3}}
    with pytest.raises(ScenarioError, match="9 weights are not in its files"):
        load(make_run(model=use))


def test_pickled_weights_are_not_read(make_run: MakeRun, saved: Path) -> None:
    torch.save(load_file(saved / "model.safetensors"), saved / "pytorch_model.bin")
    (saved / "model.safetensors").unlink()
    run = make_run(model={"id": str(saved), "weights": "pretrained"})
    assert "*.safetensors" in reasons(run)
    with pytest.raises(ScenarioError, match="cannot be loaded"):
        load(run)


def test_a_model_with_code_of_its_own_is_refused_without_the_flag(
    make_run: MakeRun, saved: Path
) -> None:
    _bring_code(saved)
    with pytest.raises(ScenarioError, match=r"needs code.*--trust-remote-code"):
        load(make_run(model={"id": str(saved)}))


def test_code_from_the_hub_is_trusted_only_at_a_fixed_revision(make_run: MakeRun) -> None:
    run = make_run(model={"id": "some-org/some-model"})
    run.trust_remote_code = True
    with pytest.raises(ScenarioError, match=r"set model\.revision"):
        load(run)


def test_pretrained_weights_of_a_catalog_name_are_impossible(make_run: MakeRun) -> None:
    run = make_run(model={"id": "gpt2", "weights": "pretrained"})
    assert "name a local directory or a hub id" in reasons(run)
    with pytest.raises(ScenarioError, match="name a local directory or a hub id"):
        load(run)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ({"id": "mistral-7"}, "did you mean 'mistral-7b'"),
        ({"id": "./nowhere"}, "no such directory"),
        ({"attention": "flex_attention"}, "cannot train on a CPU"),
        ({"attention": "flash_attention_2"}, "cannot train on a CPU"),
    ],
)
def test_a_model_that_cannot_be_loaded_here_is_told_before_anything_starts(
    make_run: MakeRun, model: dict[str, Any], reason: str
) -> None:
    assert reason in reasons(make_run(model=model, resources={"device": "cpu"}))


def test_what_flash_attn_needs_is_told_before_anything_starts(make_run: MakeRun) -> None:
    run = make_run(model={"attention": "flash_attention_2"}, resources={"device": "cuda"})
    old = GPU(index=0, name="Old", uuid="GPU-0", memory_bytes=1, compute_capability=(7, 5))
    machine = MACHINE.model_copy(update={"gpus": (old,)})
    found = "\n".join(HuggingFace(Options()).check_scenario(run.experiment, machine))
    assert "attention is in float32" in found
    assert "needs compute capability 8.0, Old has 7.5" in found
    half = make_run(
        model={"attention": "flash_attention_2", "dtype": "bfloat16"},
        resources={"device": "cuda"},
    )
    assert "float32" not in reasons(half)


@pytest.mark.parametrize("name", ["tiny-llama-cpu", "some-org/some-model"])
def test_a_model_that_can_be_loaded_has_no_reasons_against_it(make_run: MakeRun, name: str) -> None:
    assert reasons(make_run(model={"id": name})) == ""


def test_a_saved_model_has_no_reasons_against_it(make_run: MakeRun, saved: Path) -> None:
    assert reasons(make_run(model={"id": str(saved), "weights": "pretrained"})) == ""


def test_the_fingerprint_of_a_directory_changes_with_its_weights_and_its_configuration(
    make_run: MakeRun, saved: Path
) -> None:
    def fingerprint(kind: str) -> str | None:
        run = make_run(model={"id": str(saved), "weights": kind})
        return HuggingFace(Options()).fingerprint(run.experiment)

    pretrained, random = fingerprint("pretrained"), fingerprint("random")
    _change_weights(saved)
    assert fingerprint("pretrained") != pretrained
    assert fingerprint("random") == random
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.5}))
    assert fingerprint("random") != random


def test_the_catalog_needs_no_fingerprint(make_run: MakeRun) -> None:
    assert HuggingFace(Options()).fingerprint(make_run().experiment) is None


def test_evidence_says_what_was_loaded_and_what_of_it_trains(make_run: MakeRun) -> None:
    run = make_run(model={"overrides": SMALL})
    plugin = HuggingFace(Options())
    run.model = plugin.load_model(run)
    run.model.lm_head.requires_grad_(False)
    found = evidence_of(run)
    assert found["class"] == "LlamaForCausalLM"
    assert found["parameters"] - found["trainable_parameters"] == 2048 * 32


def test_the_fingerprint_of_weights_tells_seeds_apart(make_run: MakeRun) -> None:
    first, same, other = (
        make_run(model={"overrides": SMALL}, train={"seed": seed}) for seed in (0, 0, 1)
    )
    for run in (first, same, other):
        load(run)
    assert len(first.weights_fingerprint) == 16
    assert first.weights_fingerprint == same.weights_fingerprint != other.weights_fingerprint


def test_a_loaded_model_trains(make_run: MakeRun) -> None:
    model = load(make_run(model={"overrides": SMALL}))
    tokens = torch.arange(64).reshape(2, 32)
    model(input_ids=tokens, labels=tokens, num_items_in_batch=62).loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def _bring_code(folder: Path) -> None:
    """Make a saved model one that asks for code of its own."""
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "homemade"
    config["auto_map"] = {"AutoConfig": "homemade.Config"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "homemade.py").write_text("raise SystemExit('this code was run')\n")


def _change_weights(folder: Path) -> None:
    """Change one number in a saved model."""
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"][0, 0] += 1
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_model_that_is_nowhere_is_the_users_to_mend(make_run: MakeRun) -> None:
    assert reasons(make_run(model={"id": "tiny-lama-cpu"})).startswith("wrong: no model")


def test_an_override_that_is_nearly_a_published_key_is_taken_for_a_slip(make_run: MakeRun) -> None:
    slip = reasons(make_run(model={"overrides": {"num_hiden_layers": 1}}))
    assert slip.startswith("wrong: ") and "did you mean num_hidden_layers?" in slip
    assert reasons(make_run(model={"overrides": {"attention_dropout": 0.1}})) == ""

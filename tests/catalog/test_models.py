"""The catalog: every card loads, its figures are right, and reading it needs no torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from imported_modules import imported

from accel_bench.catalog import models as catalog
from accel_bench.documents import presets
from accel_bench.errors import ScenarioError
from accel_bench.scenario.uses import ModelUse

NAMES = (
    "code-llama-7b",
    "codegemma-7b",
    "falcon-7b",
    "freewilly-2",
    "function-calling-llama-2-7b",
    "gemma-2b",
    "gpt2",
    "gpt2-medium",
    "granite-3-8b",
    "h2o-danube2-1.8b",
    "llama-2-70b",
    "llama-2-7b",
    "llama-3-70b",
    "llama-3-8b",
    "llama-3.1-70b",
    "llama-3.1-70b-instruct",
    "llama-3.1-8b",
    "llama-3.1-8b-instruct",
    "longchat-7b",
    "mistral-7b",
    "mistral-7b-instruct",
    "mixtral-8x7b",
    "mixtral-8x7b-instruct",
    "nous-hermes-7b",
    "open-llama-7b",
    "opt-125m",
    "phi-2",
    "platypus-2-7b",
    "pythia-1b",
    "qwen2.5-7b",
    "redpajama-incite-3b",
    "santacoder",
    "stable-code-3b",
    "stablelm-base-alpha-3b",
    "stablelm-zephyr-3b",
    "tiny-llama-cpu",
    "tinyllama-1.1b",
    "vicuna-7b",
)
"""Models that people ask for by name: one of every family, and those of published benchmarks."""


def test_the_catalog_holds_every_model_and_each_card_loads() -> None:
    assert set(NAMES) <= set(catalog.list_cards())


@pytest.mark.parametrize("name", catalog.list_cards())
def test_every_figure_is_one_that_the_configuration_class_knows(name: str) -> None:
    import transformers

    card = catalog.read_card(name)
    known = set(transformers.CONFIG_MAPPING[card.model_type]().to_dict())
    # Labels stand in a configuration as their names; a first token it takes, and need not have.
    assert set(card.config) <= known | {"num_labels", "decoder_start_token_id"}


def test_a_misspelt_name_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(ScenarioError, match=r"'misral-7b'.*did you mean 'mistral-7b'"):
        catalog.read_card("misral-7b")


def test_a_wrong_card_is_refused_with_file_line_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    text = "description: d\narchitecture: A\nmodel_type: m\nsource: s\nparameters: many\n"
    (tmp_path / "models" / "wrong.yaml").write_text(text + "config: {a: 1}\n")
    monkeypatch.setattr(presets, "preset_roots", lambda: [tmp_path])
    with pytest.raises(ScenarioError, match=r"wrong\.yaml:5:1: parameters"):
        catalog.read_card("wrong")


def test_a_card_has_the_figures_of_the_model_it_was_made_from_but_for_its_own() -> None:
    base, tuned = catalog.read_card("llama-3.1-8b"), catalog.read_card("llama-3.1-8b-instruct")
    assert tuned.same_as == "llama-3.1-8b"
    assert tuned.description != base.description
    assert (tuned.parameters, tuned.architecture) == (base.parameters, base.architecture)
    assert tuned.config == {**base.config, "eos_token_id": 128009}


@pytest.mark.parametrize(
    ("same_as", "problem"),
    [
        ("llama-3.1-9b", r"'llama-3\.1-9b'.*did you mean 'llama-3\.1-8b'"),
        ("tuned", r"again\.yaml:2:1: tuned is itself the same as llama-2-7b; name that"),
    ],
)
def test_a_card_that_is_the_same_as_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_as: str, problem: str
) -> None:
    (tmp_path / "models").mkdir()
    for name, other in (("tuned", "llama-2-7b"), ("again", same_as)):
        text = f"description: d.\nsame_as: {other}\nsource: s\n"
        (tmp_path / "models" / f"{name}.yaml").write_text(text)
    shipped = presets.preset_roots()
    monkeypatch.setattr(presets, "preset_roots", lambda: [*shipped, tmp_path])
    assert catalog.read_card("tuned").parameters == catalog.read_card("llama-2-7b").parameters
    with pytest.raises(ScenarioError, match=problem):
        catalog.read_card("again")


def test_the_architecture_of_a_catalog_name_comes_from_its_card() -> None:
    assert catalog.architecture_of(ModelUse(id="mixtral-8x7b")) == "MixtralForCausalLM"


def test_the_architecture_of_a_directory_comes_from_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["OPTForCausalLM"]}))
    assert catalog.architecture_of(ModelUse(id=str(tmp_path))) == "OPTForCausalLM"


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_directory_without_a_readable_configuration_is_refused(
    tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ScenarioError, match=r"config\.json"):
        catalog.architecture_of(ModelUse(id=str(tmp_path)))


def test_the_architecture_of_a_hub_id_is_not_known() -> None:
    assert catalog.architecture_of(ModelUse(id="some-org/some-model")) is None


def test_reading_the_catalog_imports_no_torch_and_no_transformers() -> None:
    program = (
        "from accel_bench.catalog.models import architecture_of, list_cards\n"
        "from accel_bench.scenario.uses import ModelUse\n"
        "list_cards(), architecture_of(ModelUse())\n"
    )
    assert not imported(program, {"torch", "transformers", "peft", "numpy"})

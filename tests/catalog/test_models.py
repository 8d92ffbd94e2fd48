"""The catalog: every card loads, its figures are right, and reading it needs no torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from imported_modules import imported

from accel_bench.catalog import models as catalog
from accel_bench.documents import presets
from accel_bench.errors import AccelBenchError, ScenarioError
from accel_bench.scenario.uses import ModelUse

NAMES = (
    "gpt2",
    "granite-3-1b-a400m",
    "granite-3-8b",
    "llama-2-70b",
    "llama-2-7b",
    "llama-3-8b",
    "mistral-7b",
    "mixtral-8x7b",
    "opt-125m",
    "qwen2.5-7b",
    "santacoder",
    "tiny-llama-cpu",
)


def test_the_catalog_holds_every_model_and_each_card_loads() -> None:
    assert set(NAMES) <= set(catalog.list_cards())


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_is_one_that_the_configuration_class_knows(name: str) -> None:
    import transformers

    card = catalog.read_card(name)
    assert set(card.config) <= set(transformers.CONFIG_MAPPING[card.model_type]().to_dict())


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


def test_a_count_that_fails_or_hangs_is_an_error_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = catalog.read_card("opt-125m")
    broken = card.model_copy(update={"config": {**card.config, "hidden_size": "wide"}})
    with pytest.raises(AccelBenchError, match=r"^the model cannot be counted: .*hidden_size"):
        catalog.count_model(broken)
    monkeypatch.setattr(catalog, "COUNT_SECONDS", 0.01)
    with pytest.raises(AccelBenchError, match=r"cannot be counted: it has not ended after 0\.01 s"):
        catalog.count_model(card)


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
        "from accel_bench.builtin.models import huggingface, lora\n"
        "from accel_bench.builtin.optimizers import torch_optimizers\n"
        "list_cards(), architecture_of(ModelUse())\n"
    )
    assert not imported(program, {"torch", "transformers", "peft", "numpy"})

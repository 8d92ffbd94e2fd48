"""A model's size from its configuration alone: the plan's estimate, made without torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from accel_bench_advise.estimates.lower_bound import parameters_of
from imported_modules import imported

from accel_bench.catalog.models import list_cards, read_card
from accel_bench.scenario.uses import ModelUse

DECODERS = [name for name, card in list_cards().items() if card.family == "text-generation"]

LAYERS = {"gpt2": "n_layer", "santacoder": "n_layer"}
"""What a configuration calls its number of layers where it is not `num_hidden_layers`."""


@pytest.mark.parametrize("name", DECODERS)
def test_a_model_of_the_catalog_has_its_published_parameters(name: str) -> None:
    assert parameters_of(ModelUse(id=name)) == read_card(name).parameters


@pytest.mark.parametrize("name", DECODERS)
def test_a_directory_is_at_most_two_percent_below_what_is_published(
    name: str, tmp_path: Path
) -> None:
    card = read_card(name)
    (tmp_path / "config.json").write_text(json.dumps(card.config))
    found = parameters_of(ModelUse(id=str(tmp_path)))
    assert found is not None
    assert 0.98 * card.parameters < found <= card.parameters


@pytest.mark.parametrize("name", ["gpt2", "llama-2-7b", "mixtral-8x7b"])
def test_twice_the_layers_add_the_layers_once_more(name: str) -> None:
    card = read_card(name)
    key = LAYERS.get(name, "num_hidden_layers")
    layers = card.config[key]
    assert isinstance(layers, int)
    sizes = []
    for count in (layers, 2 * layers, 3 * layers):
        found = parameters_of(ModelUse(id=name, overrides={key: count}))
        assert found is not None
        sizes.append(found)
    assert sizes[2] - sizes[1] == pytest.approx(sizes[1] - sizes[0], rel=1e-6)
    assert sizes[1] > 1.5 * sizes[0]


def test_nothing_is_said_of_a_hub_id_or_of_a_configuration_with_other_keys(tmp_path: Path) -> None:
    assert parameters_of(ModelUse(id="org/name")) is None
    for config in ({"width": 3}, {"hidden_size": "wide", "n_layer": -1}):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert parameters_of(ModelUse(id=str(tmp_path))) is None


def test_layers_that_are_not_alike_are_not_estimated(tmp_path: Path) -> None:
    config = read_card("mixtral-8x7b").config
    for key, value in (("expert_layer_period", 2), ("mlp_only_layers", [0]), ("moe_layer_freq", 1)):
        (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
        assert (parameters_of(ModelUse(id=str(tmp_path))) is None) == (value != 1)


def test_it_needs_no_torch() -> None:
    assert "torch" not in imported("import accel_bench_advise.estimates.lower_bound", {"torch"})

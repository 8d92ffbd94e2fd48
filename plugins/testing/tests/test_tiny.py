"""The tiny scenario: every slot is found by its hooks, every architecture is made small."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from accel_bench_testing.tiny import merged, model_of, plan_trial, shrunk, slots_of, usual_dtype

from accel_bench.catalog.models import list_cards
from accel_bench.plugins.manager import load_class

SLOTS = {
    "adamw": ("optimizer",),
    "ddp": ("parallel",),
    "example": (),
    "hf-trainer": (),
    "huggingface": ("model",),
    "local": ("launcher",),
    "lora": ("adapter",),
    "memory": ("metrics",),
    "null": ("data", "model", "optimizer", "engine"),
    "nvml": ("metrics",),
    "synthetic": ("data",),
    "torch": ("engine",),
    "torch-compile": (),
}
"""Plugins of this environment, and the slots that they are made for."""


@pytest.mark.box
@pytest.mark.parametrize("name", SLOTS)
def test_the_slot_follows_from_the_hooks(name: str) -> None:
    assert slots_of(load_class(name, allow_torch=True)) == SLOTS[name]


LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers")
"""What configurations call their number of layers."""


@pytest.mark.parametrize("name", list_cards())
def test_every_model_of_the_catalog_is_made_small(name: str) -> None:
    overrides, config = flat(shrunk(name)), flat(list_cards()[name].config)
    layers = {overrides[key] for key in LAYERS if key in overrides}
    assert layers == {2} or set(overrides["depths"]) == {1}
    assert overrides.get("vocab_size") == (2048 if "vocab_size" in config else None)


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """All values of a configuration, those of its parts among them."""
    parts = [flat(value) for value in config.values() if isinstance(value, Mapping)]
    return {key: value for one in (config, *parts) for key, value in one.items()}


def test_each_architecture_of_the_catalog_has_a_model() -> None:
    for card in list_cards().values():
        found = model_of(card.architecture)
        assert found is not None
        assert list_cards()[found].architecture == card.architecture


def test_a_bare_name_of_a_slot_keeps_the_other_keys() -> None:
    found = merged({"data": {"sequence_length": 8}}, {"data": "text", "metrics": ["memory"]})
    assert found == {"data": {"sequence_length": 8, "use": "text"}, "metrics": ["memory"]}


def test_a_plugin_and_its_baseline_differ_by_the_plugin_alone() -> None:
    trial = plan_trial("sgd", {"momentum": 0.9})
    with_it, without = trial.plugin.experiment.scenario, trial.baseline.experiment.scenario
    assert with_it.optimizer.use == "sgd"
    assert with_it.optimizer.options == {"momentum": 0.9}
    assert with_it.model_copy(update={"optimizer": without.optimizer}) == without


def test_the_usual_dtype_is_float32_where_that_is_allowed() -> None:
    kind = load_class("memory")
    assert usual_dtype(kind) == "float32"

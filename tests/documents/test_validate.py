"""Validation messages: one line for each problem, with its place, its key and what was given."""

from __future__ import annotations

import pytest

from accel_bench.documents.validate import known_keys, validate
from accel_bench.errors import PluginError, ScenarioError
from accel_bench.scenario.models import Scenario, ScenarioFile


def complain(data: object) -> str:
    """What is said of this data."""
    with pytest.raises(ScenarioError) as caught:
        validate(ScenarioFile, data, lambda location: f"at {location}", ScenarioError, " (here)")
    return str(caught.value)


def test_a_problem_is_said_with_place_key_reason_value_and_context() -> None:
    message = complain({"train": {"seed": "x"}})
    assert message.startswith("at ('train', 'seed'): train.seed: Input should be a valid integer")
    assert message.endswith('(given: "x") (here)')


def test_a_long_value_is_cut_short() -> None:
    assert len(complain({"train": {"seed": "x" * 1000}})) < 200


def test_a_union_s_members_do_not_stand_in_the_key() -> None:
    message = complain({"measure": {"warmup": -1}})
    assert "measure.warmup: " in message
    assert "int" not in message.partition(": ")[0]


def test_the_error_is_of_the_kind_asked_for() -> None:
    with pytest.raises(PluginError):
        validate(Scenario, {"x": 1}, lambda _: "plugin", PluginError)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_what_is_no_json_is_refused(value: object) -> None:
    with pytest.raises((ScenarioError, TypeError)):
        validate(Scenario, {"train": {"learning_rate": value}}, lambda _: "x", ScenarioError)


def test_known_keys_are_those_of_the_model_at_the_path() -> None:
    assert "micro_batch_size" in known_keys(Scenario, ["train"])
    assert "dtype" in known_keys(Scenario, ("model",))
    assert "train" in known_keys(Scenario, ())
    assert set(known_keys(ScenarioFile, ("exclude", 0))) == {"when", "because"}

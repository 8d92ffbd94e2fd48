"""What follows from `mode: inference`."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from accel_bench.scenario.experiment import identity_of
from accel_bench.scenario.models import Scenario, Stack

ASKED = {"mode": "inference", "inference": {"batch_size": 4, "prompt_tokens": 24}}


def test_the_engine_and_the_sizes_follow_from_the_mode() -> None:
    scenario = Scenario.model_validate(ASKED)
    assert (scenario.engine.use, scenario.optimizer.use) == ("generate", "none")
    assert scenario.data.sequence_length == 24
    assert scenario.train.micro_batch_size == 4
    assert Scenario.model_validate(scenario.model_dump()) == scenario


def test_several_devices_are_replicas_that_nothing_joins() -> None:
    scenario = Scenario.model_validate({**ASKED, "resources": {"devices": 2}})
    assert scenario.parallel.use == "none"
    assert scenario.train.global_batch_size == 8


def test_a_chosen_engine_and_the_datas_own_settings_stay() -> None:
    work = {**ASKED, "engine": "other", "data": {"use": "text", "seed": 3}}
    scenario = Scenario.model_validate(work)
    assert scenario.engine.use == "other"
    assert (scenario.data.use, scenario.data.seed) == ("text", 3)


@pytest.mark.parametrize(
    ("section", "key"), [("data", "sequence_length"), ("train", "micro_batch_size")]
)
def test_another_size_is_refused_with_the_key_to_set(section: str, key: str) -> None:
    with pytest.raises(ValidationError, match=f"{section}.{key} is 7, and inference"):
        Scenario.model_validate({**ASKED, section: {key: 7}})


def test_training_has_the_ids_of_before_there_was_inference() -> None:
    stack = Stack(name="a")
    assert "inference" not in identity_of(Scenario(), stack, {})["work"]
    assert "inference" in identity_of(Scenario.model_validate(ASKED), stack, {})["work"]

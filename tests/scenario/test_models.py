"""The models: uses, strictness, batch sizes and defaults."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_bench.documents.validate import validate
from accel_bench.errors import ScenarioError
from accel_bench.scenario.batches import complete_batch
from accel_bench.scenario.models import Scenario, ScenarioFile, StackEntry
from accel_bench.scenario.uses import AdapterUse, DataUse, ModelUse, Use

SIZES = ("micro_batch_size", "gradient_accumulation", "global_batch_size")

scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5)
flat = st.lists(scalars, max_size=2) | st.dictionaries(st.text(max_size=4), scalars, max_size=2)
json_values = scalars | flat | st.lists(flat, max_size=2)
option_names = st.from_regex(r"[a-z_]{1,8}", fullmatch=True).filter(
    lambda name: name not in ("use", "options")
)


def read(model: Any, data: Any) -> Any:
    """Validate plain data as a file's is."""
    return validate(model, data, lambda _: "file", ScenarioError)


# Uses.


def test_a_key_with_a_former_name_is_told_its_new_one() -> None:
    with pytest.raises(ScenarioError, match=r"'measure\.repeats'; did you mean 'rounds'"):
        read(Scenario, {"measure": {"repeats": 3}})


def test_a_bare_name_is_a_use_without_options() -> None:
    assert read(Use, "lora") == Use(use="lora", options={})


def test_what_stands_beside_use_are_the_plugin_s_options() -> None:
    found = read(AdapterUse, {"use": "lora", "r": 16, "target_modules": ["q_proj"]})
    assert found.options == {"r": 16, "target_modules": ["q_proj"]}


def test_a_slot_keeps_its_own_keys_and_passes_the_others_on() -> None:
    found = read(DataUse, {"use": "text", "sequence_length": 8, "source": "stdlib"})
    assert (found.sequence_length, found.options) == (8, {"source": "stdlib"})


def test_a_slot_may_leave_use_out() -> None:
    found = read(ModelUse, {"id": "gpt2", "trust": True})
    assert (found.use, found.id, found.options) == ("huggingface", "gpt2", {"trust": True})


def test_null_without_quotes_is_the_plugin_of_that_name() -> None:
    assert read(ModelUse, {"use": None}).use == "null"


def test_options_are_written_beside_use() -> None:
    use = Use(use="x", options={"bits": 4, "group": None})
    assert use.model_dump(mode="json") == {"use": "x", "bits": 4, "group": None}


@given(options=st.dictionaries(option_names, json_values, max_size=3))
def test_a_use_reads_back_as_it_was_written(options: dict[str, Any]) -> None:
    use = Use(use="x", options=options)
    assert Use.model_validate_json(use.model_dump_json()) == use
    assert read(Use, use.model_dump(mode="json", exclude_none=True)) == use


@pytest.mark.parametrize("data", [3, True, ["lora"], {"r": 16}, {"use": ""}, {"use": 3}])
def test_what_is_no_use_is_refused(data: Any) -> None:
    with pytest.raises(ScenarioError):
        read(Use, data)


def test_the_keys_of_a_slot_are_those_that_no_option_may_have() -> None:
    assert {"use", "id", "dtype", "weights"} <= ModelUse.owned_keys()
    assert "options" not in ModelUse.owned_keys()


# Batch sizes.


@given(
    micro=st.integers(1, 64),
    accumulation=st.integers(1, 16),
    world_size=st.integers(1, 8),
    missing=st.sampled_from([(), *((size,) for size in SIZES)]),
)
def test_any_two_batch_sizes_give_the_third(
    micro: int, accumulation: int, world_size: int, missing: tuple[str, ...]
) -> None:
    numbers = (micro, accumulation, micro * accumulation * world_size)
    full = dict(zip(SIZES, numbers, strict=True))
    given_sizes = {key: value for key, value in full.items() if key not in missing}
    assert complete_batch(given_sizes, world_size) == full


@given(
    total=st.integers(1, 64),
    parts=st.integers(1, 16),
    world_size=st.integers(1, 8),
    key=st.sampled_from(SIZES[:2]),
)
def test_a_remainder_is_an_error_and_never_rounded(
    total: int, parts: int, world_size: int, key: str
) -> None:
    sizes = {"global_batch_size": total, key: parts}
    if total % (parts * world_size):
        with pytest.raises(ValueError, match=f"{total} cannot be divided by .* = "):
            complete_batch(sizes, world_size)
    else:
        done = complete_batch(sizes, world_size)
        assert done["micro_batch_size"] * done["gradient_accumulation"] * world_size == total


def test_three_sizes_that_contradict_one_another_are_refused_with_the_product() -> None:
    sizes = dict(zip(SIZES, (2, 3, 7), strict=True))
    with pytest.raises(ValueError, match=r"is 7, but micro_batch_size 2 x .*= 6"):
        complete_batch(sizes, 1)


def test_one_size_alone_leaves_the_other_factor_at_one() -> None:
    assert complete_batch({"global_batch_size": 8}, 2)["micro_batch_size"] == 4
    assert complete_batch({"micro_batch_size": 8}, 2)["global_batch_size"] == 16
    assert complete_batch({}, 2)["global_batch_size"] == 2


@pytest.mark.parametrize("size", [0, -1, 1.5, "2", True, None])
def test_a_size_that_is_no_positive_integer_is_refused_or_missing(size: Any) -> None:
    data = {"train": {"micro_batch_size": size}}
    if size is None:
        assert read(Scenario, data).train.micro_batch_size == 1
        return
    with pytest.raises(ScenarioError, match=r"train\.micro_batch_size"):
        read(Scenario, data)


def test_a_batch_that_cannot_be_shared_by_the_devices_names_both() -> None:
    data = {"train": {"global_batch_size": 3}, "resources": {"devices": 2}}
    with pytest.raises(ScenarioError, match=r"3 cannot be divided by 1 x 2 devices"):
        read(Scenario, data)


# Defaults and strictness.


def test_the_default_of_every_slot_is_written_into_the_resolved_scenario() -> None:
    found = read(Scenario, {})
    uses = {slot: getattr(found, slot).use for slot in Scenario.SLOTS}
    assert uses == {
        "task": "causal-lm",
        "model": "huggingface",
        "adapter": "none",
        "data": "synthetic",
        "optimizer": "adamw",
        "engine": "torch",
        "parallel": "none",
        "launcher": "local",
    }
    assert [use.use for use in found.metrics] == ["memory"]


@pytest.mark.parametrize(("devices", "parallel"), [(1, "none"), (2, "ddp")])
def test_several_devices_are_parallel_by_default(devices: int, parallel: str) -> None:
    found = read(Scenario, {"resources": {"devices": devices}})
    assert found.parallel.use == parallel
    assert found.world_size == devices


def test_a_named_way_of_being_parallel_is_kept() -> None:
    data = {"resources": {"devices": 2}, "parallel": {"use": "other", "option": 1}}
    assert read(Scenario, data).parallel.use == "other"


def test_a_resolved_scenario_reads_back_as_itself() -> None:
    data = {
        "model": {"use": None, "size": 3},
        "metrics": ["memory", {"use": "x", "every": 2}],
        "train": {"micro_batch_size": 2, "gradient_accumulation": 3},
        "resources": {"devices": 2},
        "environment": {"OMP_NUM_THREADS": "1"},
    }
    found = read(Scenario, data)
    assert read(Scenario, json.loads(found.model_dump_json(exclude_none=True))) == found


def test_devices_that_compute_one_batch_together_count_once_in_the_global_batch() -> None:
    resources = {"devices": 4, "data_parallel": 2}
    found = read(Scenario, {"resources": resources, "train": {"global_batch_size": 8}})
    assert (found.train.micro_batch_size, found.world_size, found.data_parallel) == (4, 4, 2)
    assert read(Scenario, {"resources": {"devices": 4}}).data_parallel == 4
    with pytest.raises(ScenarioError, match="data_parallel 3 does not divide 4 devices"):
        read(Scenario, {"resources": {"devices": 4, "data_parallel": 3}})


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({"measure": {"steps": "20"}}, "measure.steps"),
        ({"measure": {"steps": 20.0}}, "measure.steps"),
        ({"measure": {"warmup": "often"}}, "measure.warmup"),
        ({"measure": {"warmup": 0}}, "measure.warmup"),
        ({"measure": {"timeout_seconds": 0}}, "measure.timeout_seconds"),
        ({"train": {"gradient_checkpointing": "no"}}, "train.gradient_checkpointing"),
        ({"train": {"gradient_checkpointing": 1}}, "train.gradient_checkpointing"),
        ({"train": {"precision": "fp8"}}, "train.precision"),
        ({"train": {"learning_rate": -1}}, "train.learning_rate"),
        ({"train": {"seed": -1}}, "train.seed"),
        ({"model": {"dtype": "bf16"}}, "model.dtype"),
        ({"data": {"sequence_length": 0}}, "data.sequence_length"),
        ({"resources": {"devices": 0}}, "resources.devices"),
        ({"resources": {"device": 1}}, "resources.device"),
        ({"environment": {"A": [1]}}, "environment.A"),
        ({"slow": "yes"}, "slow"),
        ({"name": "../up"}, "name"),
        ({"name": "n" * 65}, "name"),
        ({"stacks": []}, "stacks"),
        ({"exclude": [{"when": {}, "because": "x"}]}, "exclude.0.when"),
        ({"exclude": [{"when": {"stack": "a"}, "because": ""}]}, "exclude.0.because"),
        ({"sweep": {"train.seed": 1}}, "sweep.train.seed"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_its_key(data: dict[str, Any], key: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        read(ScenarioFile, data)
    assert key in str(caught.value)


def test_a_number_is_taken_for_a_float_where_nothing_is_lost() -> None:
    assert read(Scenario, {"train": {"learning_rate": 1}}).train.learning_rate == 1.0


def test_no_stack_at_all_is_refused() -> None:
    with pytest.raises(ScenarioError, match="at least one stack"):
        read(ScenarioFile, {"stacks": {}})


def test_models_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        read(Scenario, {}).train.seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("data", "baseline"),
    [
        ({}, "baseline"),
        ({"stacks": {"a": {}, "baseline": {}}}, "baseline"),
        ({"stacks": {"b": {}, "a": {}}}, "b"),
        ({"stacks": {"b": {}, "baseline": {}}, "baseline": "b"}, "b"),
    ],
)
def test_the_baseline_is_the_named_one_else_the_one_called_so_else_the_first(
    data: dict[str, Any], baseline: str
) -> None:
    assert read(ScenarioFile, data).baseline_name() == baseline


@pytest.mark.parametrize("model", [Scenario, ScenarioFile, StackEntry, ModelUse])
def test_every_field_says_what_it_is(model: type[Any]) -> None:
    nameless = [name for name, field in model.model_fields.items() if not field.description]
    assert [name for name in nameless if name != "options"] == []

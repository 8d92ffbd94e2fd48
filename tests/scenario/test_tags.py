"""Tags of sweep points: equal for equal values, safe as folders' names, no two points alike."""

from __future__ import annotations

import re
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_bench.errors import ScenarioError
from accel_bench.planning.resolve import resolve
from accel_bench.scenario.find import read_draft
from accel_bench.scenario.sweep import automatic_tag, is_chosen

SAFE = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9._+-]{0,99}")

SWEEP = "sweep: {train.micro_batch_size: [1, 4], data.sequence_length: [32, 64]}\n"


def tags(folder: Path, text: str) -> list[str]:
    """Tag of each point and stack of a file with this text."""
    (folder / "my-file.yaml").write_text(text, encoding="utf8")
    return [point.tag for point in resolve(read_draft(folder / "my-file.yaml")).points("cpu")]


def test_a_tag_does_not_depend_on_the_order_of_keys() -> None:
    sweep = {"train.seed": 1, "optimizer": {"use": "sgd", "momentum": 0.9}, "model.id": "m"}
    made = {automatic_tag(dict(order)) for order in permutations(sweep.items())}
    made.add(automatic_tag({**sweep, "optimizer": {"momentum": 0.9, "use": "sgd"}}))
    assert made == {"id_m-optimizer_momentum_0.9-use_sgd-seed_1"}


@pytest.mark.parametrize(
    ("sweep", "tag"),
    [
        ({}, ""),
        ({"train.seed": 0, "data.seed": 1}, "data.seed_1-train.seed_0"),
        ({"train.learning_rate": 1e-05, "train.max_grad_norm": None}, "learning_rate_1e-05-"),
        ({"train.gradient_checkpointing": True}, "gradient_checkpointing_true"),
        ({"adapter.target_modules": ["q", "v"]}, "target_modules_q-v"),
        ({"model.id": "meta/llama"}, "id_meta-llama-"),
    ],
)
def test_a_tag_is_readable(sweep: dict[str, Any], tag: str) -> None:
    assert automatic_tag(sweep).startswith(tag)


VALUES = st.text(max_size=300) | st.sampled_from(["..", "/", "a/../b", "größe", "con", "\0", "-rf"])


@given(st.lists(VALUES, unique=True, min_size=2, max_size=5))
def test_whatever_the_values_hold_a_tag_is_one_folder_s_name_and_no_two_are_alike(
    values: list[str],
) -> None:
    made = [automatic_tag({"model.id": value}) for value in values]
    assert all(SAFE.fullmatch(tag) and ".." not in tag for tag in made)
    assert len(set(made)) == len(made)


def test_every_point_has_a_tag_that_its_stacks_share_and_none_where_nothing_is_swept(
    tmp_path: Path,
) -> None:
    made = tags(tmp_path, SWEEP + "stacks: {a: [], b: []}\n")
    assert made[:2] == ["sequence_length_32-micro_batch_size_1"] * 2
    assert len(set(made)) == 4
    assert tags(tmp_path, "name: x\n") == [""]
    assert set(tags(tmp_path, SWEEP + "tag: off\n")) == {""}
    assert set(tags(tmp_path, SWEEP + "tag: false\n")) == {""}


def test_the_keys_of_a_tag_can_be_chosen_swept_or_not(tmp_path: Path) -> None:
    sweep = "sweep: {train.micro_batch_size: [1, 4]}\n"
    made = tags(tmp_path, sweep + "tag: {keys: [train.micro_batch_size, model.id]}\n")
    assert made[0] == "id_tiny-llama-cpu-micro_batch_size_1"
    assert is_chosen(made[0], {"train.micro_batch_size": 1})
    assert tags(tmp_path, "tag: {keys: [data.sequence_length]}\n") == ["sequence_length_512"]


def test_a_format_names_any_key_the_preset_the_world_size_and_the_stack(tmp_path: Path) -> None:
    form = "{preset}.{world_size}.bs_{train.micro_batch_size}"
    sweep = "sweep: {train.micro_batch_size: [1, 4], resources.devices: [1, 2]}\n"
    made = tags(tmp_path, f"{sweep}tag: {{format: '{form}'}}\nparallel: ddp\n")
    assert made == [f"unnamed.{n}.bs_{size}" for size in (1, 4) for n in (1, 2)]
    made = tags(tmp_path, f"extends: quickstart\n{sweep}tag: {{format: '{form}.{{stack}}'}}\n")
    assert made[0] == "quickstart.1.bs_1.baseline"


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ("{keys: [data.sequence_length]}", r":2:1: the points at train\.micro_batch_size=1, data"),
        ("{format: same}", "=32 and at .* have the same tag 'same'; name a key that differs"),
        ("{keys: [train.micro_batch_siz]}", ":2:1: .*did you mean 'micro_batch_size'"),
        ("{format: '{trian}'}", "no experiment of this scenario has the key 'trian'; did you mean"),
        ("{format: '{train.seed'}", "write a brace that is none twice"),
        ("{format: '{train.seed!r}'}", "write {train.seed} alone"),
        ("{format: '{train.seed:>999999999}'}", "write {train.seed} alone"),
        ("{format: {preset}}", "write the format in quotes"),
        ("{format: a, keys: [name]}", "not both"),
        ("{keys: []}", "tag.keys: .*at least 1 item"),
        ("maybe", "write `off`"),
    ],
)
def test_a_wrong_rule_is_refused_and_a_clash_names_both_points(
    tag: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ScenarioError, match=message):
        tags(tmp_path, f"{SWEEP}tag: {tag}\n")

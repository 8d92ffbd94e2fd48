"""What of two layers holds: a key is swept or set as the upper one says, and null takes it back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accel_bench.errors import ScenarioError
from accel_bench.planning.resolve import resolve
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.find import read_draft

Layers = list[str]


def lay(folder: Path, *files: str) -> Draft:
    """Read files of these texts, each of which extends the one before."""
    for number, text in enumerate(files):
        extends = f"extends: layer{number - 1}.yaml\n" if number else ""
        (folder / f"layer{number}.yaml").write_text(extends + text, encoding="utf8")
    return read_draft(folder / f"layer{len(files) - 1}.yaml")


def seeds(draft: Draft) -> list[int]:
    """Seed of each sweep point."""
    return [point.scenario.train.seed for point in resolve(draft).points("cpu")]


SET, SWEPT = "train: {seed: 7}\n", "sweep: {train.seed: [1, 2]}\n"


@pytest.mark.parametrize(
    ("files", "expected", "notice"),
    [
        (
            [SET, SWEPT],
            [1, 2],
            "swept (layer1.yaml:2:9), which replaces its value (layer0.yaml:1:9",
        ),
        ([SET, "zip: {train.seed: [3]}\n"], [3], "swept (layer1.yaml:2:7)"),
        ([SWEPT, SET], [7], "set (layer1.yaml:2:9), which replaces its sweep (layer0.yaml:1:9"),
        (["zip: {train.seed: [3]}\n", SET], [7], "set (layer1.yaml:2:9)"),
        ([SET, SWEPT, SET], [7], "set (layer2.yaml:2:9)"),
        ([SET, "name: x\n", SWEPT], [1, 2], "swept (layer2.yaml:2:9)"),
        ([SWEPT, "sweep: {train.seed: [5]}\n"], [5], ""),
    ],
)
def test_of_a_key_that_layers_set_and_sweep_the_upper_one_holds_and_a_notice_names_both(
    files: Layers, expected: list[int], notice: str, tmp_path: Path
) -> None:
    draft = lay(tmp_path, *files)
    assert seeds(draft) == expected
    assert notice in "".join(draft.notices)
    assert bool(notice) == bool(draft.notices)


def test_a_sweep_of_a_whole_slot_replaces_what_a_base_sets_below_it(tmp_path: Path) -> None:
    draft = lay(
        tmp_path, "optimizer: {use: sgd, momentum: 0.5}\n", "sweep: {optimizer: [adam, sgd]}\n"
    )
    used = [point.scenario.optimizer for point in resolve(draft).points("cpu")]
    assert [(use.use, use.options) for use in used] == [("adam", {}), ("sgd", {})]


OVERRIDES = [
    (SET, [("sweep.train.seed", [1, 2])], [1, 2], "is swept (--set sweep.train.seed)"),
    (SET, [("sweep", {"train.seed": [1]})], [1], "is swept (--set sweep)"),
    (SWEPT, [("train.seed", 7)], [7], "is set (--set train.seed)"),
    (SWEPT, [("sweep.train.seed", None)], [0], ""),
    (SWEPT, [("sweep", None), ("train.seed", 4)], [4], "is set (--set train.seed)"),
    (SET, [("train.seed", None)], [0], ""),
    (SET, [("train", None)], [0], ""),
]


@pytest.mark.parametrize(("file", "overrides", "expected", "notice"), OVERRIDES)
def test_the_command_line_is_a_layer_over_the_file(
    file: str, overrides: list[tuple[str, Any]], expected: list[int], notice: str, tmp_path: Path
) -> None:
    draft = lay(tmp_path, file)
    draft.override(overrides)
    assert seeds(draft) == expected
    assert notice in "".join(draft.notices)


def test_what_one_layer_both_sets_and_sweeps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"layer1\.yaml:3:9: .*also set at .*layer1\.yaml:2:9"):
        resolve(lay(tmp_path, SET, SET + SWEPT))
    draft = lay(tmp_path, "name: x\n")
    draft.override([("train.seed", 3), ("sweep.train.seed", [1, 2])])
    with pytest.raises(ScenarioError, match=r"--set sweep\.train\.seed: .*at --set train\.seed"):
        resolve(draft)


# null


def test_null_takes_keys_back_wherever_they_stand(tmp_path: Path) -> None:
    draft = lay(
        tmp_path,
        "train: {seed: 1, max_grad_norm: 2.0}\nstacks: {a: [], b: []}\nsweep: {data.seed: [1]}\n"
        "ladder: [x]\n",
        "train: {seed: null}\nstacks: {b: null, c: null}\nsweep: {data.seed: null}\nladder: null\n",
    )
    assert draft.data == {
        "train": {"max_grad_norm": 2.0},
        "stacks": {"a": {"use": []}, "c": {"use": []}},
        "sweep": {},
    }


def test_the_plugin_that_is_called_null_is_a_value(tmp_path: Path) -> None:
    draft = lay(tmp_path, "model: {use: huggingface}\n", "model: {use: null}\n")
    draft.override([("data.use", None)])
    file = resolve(draft).scenario
    assert (file.model.use, file.data.use) == ("null", "null")


def test_null_takes_back_an_option_of_a_plugin_and_a_stack(tmp_path: Path) -> None:
    draft = lay(tmp_path, "stacks: {a: [{use: x, bits: 4, group: 8}], b: [], c: [x]}\n")
    draft.override([("stacks.a.x.bits", None), ("stacks.b", None), ("stacks.c.x.bits", None)])
    assert draft.data["stacks"] == {
        "a": {"use": [{"use": "x", "group": 8}]},
        "c": {"use": [{"use": "x", "bits": None}]},
    }


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("train.sed", "unknown key 'train.sed'; did you mean 'seed'"),
        ("train.seed", "valid integer"),
    ],
)
def test_null_where_there_is_nothing_to_take_back_is_a_value_that_is_checked(
    key: str, message: str, tmp_path: Path
) -> None:
    draft = lay(tmp_path, "name: x\n")
    draft.override([(key, None)])
    with pytest.raises(ScenarioError, match=message):
        resolve(draft)

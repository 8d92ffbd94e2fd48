"""Bases of few bits and float8 training, for each task: what trains, and which base a reference
is."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path

import pytest
from media_works import WORKS
from task_works import ALL, assert_trains_as_said, train_beside

from accel_bench.errors import ScenarioError
from accel_bench.testing import make_run

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec("torchao") is None, reason="torchao is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of the libraries that PEFT imports
]

FLOAT8 = [{"use": "torchao", "float8_training": "tensorwise", "emulate": True}]

STACKS = {
    "int8": "int8-torchao",
    "intx4": "intx4-torchao",
    "nf4": "nf4-torchao",
    "float8": "float8-weights",
}


@pytest.mark.parametrize(
    "task",
    [
        task if task == "image-classification" else pytest.param(task, marks=pytest.mark.release)
        for task in ALL
        if task != "dpo"
    ],
)
def test_each_task_trains_on_a_quantized_base(task: str, tmp_path: Path) -> None:
    is_short = task == "image-classification"
    stacks = {"int8": "int8-torchao"} if is_short else {**STACKS, "training": FLOAT8}
    results = train_beside(tmp_path, task, stacks)
    assert_trains_as_said(results)
    for stack in {*STACKS} & {*stacks}:
        shown = results[stack].ranks[0].evidence["torchao"]
        assert shown["quantized_modules"] > 0
        assert shown["left_in_full_precision"] == {}


def test_a_model_of_convolutions_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    from accel_bench_torchao import TorchAO, TorchAOOptions

    plugin = TorchAO(TorchAOOptions(weights="int8"), "torchao")
    said = "no block of ResNetForImageClassification holds a linear layer, but Conv2d; take the"
    with pytest.raises(ScenarioError, match=said):
        plugin.load_model(make_run(tmp_path, WORKS["resnet"]))


@pytest.mark.release
def test_the_reference_of_preference_tuning_is_the_quantized_base(tmp_path: Path) -> None:
    results = train_beside(tmp_path, "dpo", {**STACKS, "training": FLOAT8}, task={"use": "dpo"})
    assert_trains_as_said(results)
    for stack in (*STACKS, "training"):
        (rank,) = results[stack].ranks
        assert rank.window is not None
        assert rank.window.warmup[0].loss == pytest.approx(math.log(2), rel=1e-6)
        layers = rank.evidence["dpo"]["reference_layers"]
        assert max(layers, key=layers.__getitem__) != "Linear"

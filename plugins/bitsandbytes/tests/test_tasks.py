"""4-bit and 8-bit bases under LoRA, for each task: trained parameters and reference models."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from media_works import WORKS
from task_works import ALL, assert_trains_as_said, train_beside

from accel_bench import Run, hookimpl, load_base_model
from accel_bench.errors import ScenarioError
from accel_bench.testing import make_run

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of the libraries that PEFT imports
]

STACKS = {"nf4": "nf4", "int8": "int8"}


@pytest.mark.parametrize(
    "task",
    [
        task if task == "seq2seq-lm" else pytest.param(task, marks=pytest.mark.release)
        for task in ALL
        if task != "dpo"
    ],
)
def test_each_task_trains_on_a_quantized_base(task: str, tmp_path: Path) -> None:
    stacks = {"nf4": "nf4"} if task == "seq2seq-lm" else {**STACKS, "adamw-8bit": "adamw-8bit"}
    results = train_beside(tmp_path, task, stacks)
    assert_trains_as_said(results)
    for stack in {*STACKS} & {*stacks}:
        shown = results[stack].ranks[0].evidence["bitsandbytes"]
        # T5's `wo` stays as it is: it casts its inputs to the dtype of its weights.
        assert shown["quantized_share_of_blocks"] > (0.5 if task == "seq2seq-lm" else 0.98)
        assert shown["quantized_modules"] > 0


def test_a_model_of_convolutions_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    from accel_bench_bitsandbytes import BitsAndBytes, BitsAndBytesOptions

    plugin = BitsAndBytes(BitsAndBytesOptions(), "bitsandbytes")
    said = "blocks of ResNetForImageClassification hold no linear layer in full precision; take the"
    with pytest.raises(ScenarioError, match=said):
        plugin.load_model(make_run(tmp_path, WORKS["resnet"]))


def test_the_reference_of_preference_tuning_is_the_quantized_base(tmp_path: Path) -> None:
    """Before the first step policy and reference are equal, else the loss is not log 2."""
    task = {"use": "dpo"}
    results = train_beside(tmp_path, "dpo", STACKS, task=task)
    assert_trains_as_said(results)
    for stack, kind in (("nf4", "Linear4bit"), ("int8", "Linear8bitLt")):
        (rank,) = results[stack].ranks
        assert rank.window is not None
        assert rank.window.warmup[0].loss == pytest.approx(math.log(2), rel=1e-6)
        assert rank.window.samples[-1].loss != pytest.approx(math.log(2), rel=1e-4)
        layers = rank.evidence["dpo"]["reference_layers"]
        assert sum(count for name, count in layers.items() if name.startswith(kind)) == 7


@pytest.mark.parametrize(
    "task",
    [
        task if task == "image-text" else pytest.param(task, marks=pytest.mark.release)
        for task in ALL
        if task != "dpo"
    ],
)
def test_a_base_in_4_bits_trains_as_one_rounded_by_hand(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any difference of a task's updates is due to the rounding of its weights."""
    from accel_bench_bitsandbytes import BitsAndBytes

    def losses() -> list[float | None]:
        result = train_beside(tmp_path, task, {"nf4": "nf4"})["nf4"]
        assert result.status.completed, result.reasons
        assert result.ranks[0].window is not None
        return [sample.loss for sample in result.ranks[0].window.samples]

    packed = losses()

    @hookimpl
    def load_model(self: object, run: Run) -> object:
        model = load_base_model(run, replace=round_by_hand)
        return model.requires_grad_(False)

    monkeypatch.setattr(BitsAndBytes, "load_model", load_model)
    assert losses() == pytest.approx(packed, rel=1e-5)


def round_by_hand(name: str, module: Any) -> None:
    """Round the weight of a linear layer to 4 bits and back, except T5's `wo`."""
    import torch
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    if type(module) is torch.nn.Linear and not name.endswith(".wo"):
        values, state = quantize_4bit(module.weight.data, blocksize=64, quant_type="nf4")
        module.weight.data = dequantize_4bit(values, state)

"""Preference tuning on a packed base, whose reference is that base; other models are refused."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path

import pytest
from task_works import DPO, assert_trains_as_said, train_beside

from accel_bench import Status

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec("gptqmodel") is None, reason="GPTQModel is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of GPTQModel, and of the libraries that PEFT imports
]

PACKED = [{"use": "autogptq", "group_size": 32}]

CALIBRATED = [
    {"use": "autogptq", "group_size": 32, "quantize": "calibrate", "calibration_samples": 8}
]


@pytest.mark.parametrize(
    "use", [PACKED, pytest.param(CALIBRATED, marks=pytest.mark.release)], ids=["pack", "calibrate"]
)
def test_the_reference_of_preference_tuning_is_the_packed_base(
    use: list[dict[str, object]], tmp_path: Path
) -> None:
    """Before the first step policy and reference are equal, else the loss is not log 2."""
    model = {**DPO["model"], "dtype": "bfloat16"}
    results = train_beside(tmp_path, "dpo", {"gptq": use}, task={"use": "dpo"}, model=model)
    assert_trains_as_said(results)
    (rank,) = results["gptq"].ranks
    assert rank.window is not None
    assert rank.window.warmup[0].loss == pytest.approx(math.log(2), rel=1e-3)
    layers = rank.evidence["dpo"]["reference_layers"]
    assert layers == {"GptqTorchLinear": 7, "Linear": 1}


def test_an_encoder_is_refused_with_the_architectures_that_are_known(tmp_path: Path) -> None:
    results = train_beside(tmp_path, "masked-lm", {"gptq": PACKED}, adapter="none")
    assert results["gptq"].status is Status.SKIPPED
    assert "does not support BertForMaskedLM" in " ".join(results["gptq"].reasons)

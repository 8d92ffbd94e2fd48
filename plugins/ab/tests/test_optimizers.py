"""Optimizers and wrappers of other libraries under the observer: each step is seen, once."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from accel_bench_ab.launch import command_environment
from accel_bench_ab.record import Observed, observe

SCRIPT = Path(__file__).with_name("optimizers.py")
LIBRARIES = ("accelerate", "bitsandbytes", "deepspeed", "torchao")
MISSING = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Observed]:
    """Observations of five steps of two micro-batches with each."""
    folder = tmp_path_factory.mktemp("optimizers")
    # What torchao compiles takes a minute.
    variables = {**os.environ, "DS_ACCELERATOR": "cpu", "TORCHDYNAMO_DISABLE": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder)],
        env=command_environment(variables, folder, folder / "no-page", observed=True),
        capture_output=True,
        text=True,
        check=True,
    )
    names = json.loads((folder / "names.json").read_text())
    assert {*names.values()} == {0}, done.stderr
    return {name: observe(folder / name) for name in names}


@pytest.mark.parametrize(
    "name", ["bitsandbytes", "torchao", "accelerate", "deepspeed", "accelerate_with_deepspeed"]
)
def test_each_step_is_seen_with_the_losses_of_torchs_own_optimizer(
    name: str, found: dict[str, Observed]
) -> None:
    own, other = found["of_torch"], found[f"of_{name}"]
    assert "steps" not in other.unseen
    assert [step.passes for step in other.steps] == [2] * 5
    losses = [step.loss for step in own.steps]
    assert [step.loss for step in other.steps] == pytest.approx(losses, rel=5e-3)
    assert other.ranks[0].facts["learning_rates"].keys() == {"0.01"}


@pytest.mark.parametrize("name", ["bitsandbytes", "torchao", "accelerate"])
def test_their_updates_have_the_names_of_the_model(name: str, found: dict[str, Observed]) -> None:
    updates = found[f"of_{name}"].ranks[0].facts["updates"]
    assert {*updates["5"]} == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_flat_partitions_are_not_compared_with_weights(found: dict[str, Observed]) -> None:
    seen = found["of_deepspeed"]
    assert "DeepSpeed's ZeRO" in seen.unseen["update"]
    assert seen.ranks[0].facts["updates"] == {}


def test_losses_that_deepspeed_scales_are_not_seen(found: dict[str, Observed]) -> None:
    assert "for float16" in found["of_deepspeed_as_in_float16"].unseen["loss"]

"""Which models of the catalog fit on a device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.program import call

from accel_bench.catalog.hardware import named_hardware
from accel_bench.errors import ScenarioError
from accel_bench.runner.device_estimates import DeviceEstimator
from accel_bench.runner.recommend_models import fitting_models


def test_what_surely_does_not_fit_is_not_simulated_and_problems_stay_with_their_model() -> None:
    asked = []

    def estimator_of(name: str) -> DeviceEstimator:
        asked.append(name)
        raise ScenarioError("cannot be planned")

    found = fitting_models(["gpt2", "llama-2-70b"], named_hardware("t4"), estimator_of)
    assert asked == ["gpt2"]
    assert [(one.model, one.fit, one.why) for one in found] == [
        ("llama-2-70b", "does not fit", "its weights alone take 128 GiB in 16 bits"),
        ("gpt2", None, "cannot be planned"),
    ]


@pytest.mark.release
def test_the_program_lists_what_fits_with_what_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCEL_BENCH_RESULTS", str(tmp_path))
    work = tmp_path / "work.yaml"
    work.write_text(
        "name: work\nmodel: {dtype: bfloat16}\nadapter: lora\n"
        "data: {use: synthetic, sequence_length: 64}\ntrain: {gradient_checkpointing: true}\n"
    )
    done = call("recommend", "--gpu", "t4", "--scenario", str(work), "--format", "json")
    assert done.code == 0, done.err
    models = {one["model"]: one for one in json.loads(done.out)["models"]}
    assert models["gpt2"]["fit"] == "fits" and models["llama-2-70b"]["fit"] == "does not fit"
    assert models["gpt2"]["needed_bytes"]["high"] < 16 * 2**30

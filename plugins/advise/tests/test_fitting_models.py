"""Models of the catalog that fit a device."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from accel_bench_advise.estimates.estimator import Estimator
from accel_bench_advise.estimates.simulator import Simulator
from accel_bench_advise.recommend_request import fitting_models
from cli.program import call

from accel_bench.catalog.hardware import named_hardware
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import PlanRequest
from accel_bench.scenario.draft import Draft


def test_what_surely_does_not_fit_is_not_simulated_and_problems_stay_with_their_model() -> None:
    names = ["gpt2", "llama-2-70b", "opt-125m"]
    with closing(Simulator()) as simulator:
        estimators = [unplannable(simulator)] * 2
        found = fitting_models(names, named_hardware("t4"), estimators)
    assert [(one.model, one.fit) for one in found] == [
        ("llama-2-70b", "does not hold"),
        ("opt-125m", None),
        ("gpt2", None),
    ]
    assert found[0].why == "its weights alone take 128 GiB in 16 bits"
    assert all("cannot be planned" in one.why for one in found[1:])


def unplannable(simulator: Simulator) -> Estimator:
    """An estimator of a scenario with an unknown plugin."""
    draft = Draft("cannot be planned", {"name": "x", "optimizer": {"use": "no-such"}})
    return Estimator(simulator, draft, PlanRequest(), read_machine(), (), (), None)


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
    work_of_all = ("--model", "all", "--scenario", str(work))
    done = call("recommend", "--gpu", "t4", *work_of_all, "--format", "json")
    assert done.code == 0, done.err
    models = {one["model"]: one for one in json.loads(done.out)["models"]}
    assert models["gpt2"]["fit"] == "holds" and models["llama-2-70b"]["fit"] == "does not hold"
    assert models["gpt2"]["needed_bytes"]["high"] < 16 * 2**30

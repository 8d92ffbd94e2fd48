"""The sample scenario for a CPU: its learning, and the command in a light rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli.program import call
from several_ranks.scenarios import STARTS

from accel_bench.analysis.checks.convergence import compare_losses
from accel_bench.result import Result, Sample
from accel_bench.testing import run_scenario


def steps(result: Result) -> dict[int, Sample]:
    """Return every step by its number; a disturbed window is measured again, with later steps."""
    window = result.ranks[0].window
    assert window is not None, result.reasons
    every = (*window.warmup, *window.discarded, *window.samples)
    return {sample.step: sample for sample in every}


def test_the_twin_of_the_scenario_for_a_gpu_learns_alike_without_padding() -> None:
    found = run_scenario("padding-free-cpu")
    padded, flat = (steps(found[stack]) for stack in ("padded", "padding-free"))
    for number in range(12):
        same, other = flat[number], padded[number]
        assert same.processed_tokens == same.real_tokens == other.real_tokens
        assert other.real_tokens < other.processed_tokens
    compared = compare_losses({("", 0): found["padded"]}, {("", 0): found["padding-free"]})
    assert compared.loss_verdict == "equivalent"


@pytest.mark.parametrize("start", STARTS)
def test_the_program_runs_it(start: Any, tmp_path: Path) -> None:
    """One process of it; the padded stack stands beside it in this process, above."""
    few = ("--rounds", "1", "--set", "measure.steps=2", "--set", "measure.warmup=1")
    alone = ("--only", "padding-free", "--no-baseline")
    words = ("run", "padding-free-cpu", *few, *alone, "--format", "json", "--results", "r")
    with start(tmp_path / "site") as launching:
        done = call(*words, *launching, folder=tmp_path)
    assert done.code == 0, done.out + done.err
    (row,) = json.loads(done.out)["experiments"]
    # A busy machine degrades a run, for reasons of its own.
    assert row["status"] in ("ok", "degraded")
    assert row["tokens"]["total_global"]["processed"] == row["tokens"]["total_global"]["real"]

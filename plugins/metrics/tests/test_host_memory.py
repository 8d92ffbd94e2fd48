"""`host-memory`: a mean over the window that the rank's own peaks bound."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from accel_bench_metrics.host_memory import HostMemoryOptions, MemorySampler
from faults.program import write_scenario

import accel_bench
from accel_bench import RankProcess, RankResult
from accel_bench.testing import run_program

WORK: dict[str, Any] = {
    "name": "host-memory",
    "model": {"id": "tiny-llama-cpu"},
    "data": {"sequence_length": 16},
    "resources": {"device": "cpu", "threads": 1},
    "measure": {"warmup": 1, "steps": 30, "rounds": 1, "phase_steps": 0},
    "metrics": ["memory", {"use": "host-memory", "interval_seconds": 0.05}],
    "stacks": {"baseline": []},
}


def test_the_mean_lies_below_the_peak_that_the_rank_itself_reports(tmp_path: Path) -> None:
    results = tmp_path / "results"
    path = write_scenario(tmp_path / "scenario.yaml", WORK)
    done = run_program("run", str(path), "--results", str(results))
    assert done.returncode == 0, done.stderr
    (result,) = accel_bench.open_store(results).select()
    metrics = (*result.metrics, *result.ranks[0].metrics)
    (found,) = [one for one in metrics if one.name == "mean_host_memory_bytes"]
    (peak,) = [one for one in metrics if one.figure == "run_peak_rss"]
    assert found.series is not None and len(found.series.values) > 2
    assert found.value is not None and peak.value is not None
    # Most of it is torch itself.
    assert 100e6 < found.value <= peak.value * 1.01


def test_a_rank_elsewhere_has_no_mean_and_says_why() -> None:
    rank = SimpleNamespace(rank=0, pid=None)
    sampler = MemorySampler([cast("RankProcess", rank)], HostMemoryOptions().interval_seconds)
    (found,) = sampler.finish({0: cast("RankResult", SimpleNamespace(window=None))})
    assert found.value is None
    assert found.reason == "the rank's process is not on the machine of the program"


@pytest.mark.parametrize(("started", "ended"), [(0.0, 1e-9), (1e12, 2e12)])
def test_a_window_without_readings_has_no_mean(started: float, ended: float) -> None:
    rank = SimpleNamespace(rank=0, pid=os.getpid())
    done = SimpleNamespace(window=SimpleNamespace(started=started, ended=ended))
    sampler = MemorySampler([cast("RankProcess", rank)], 0.05)
    (found,) = sampler.finish({0: cast("RankResult", done)})
    assert (found.value, found.reason) == (None, "the readings do not cover the window")

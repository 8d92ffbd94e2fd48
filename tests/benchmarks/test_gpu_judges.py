"""What passes on a GPU, in documents of sections that only a GPU fills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def judges(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import gpu_judges

    return gpu_judges


def parts(**nsight: Any) -> dict[str, Any]:
    memory = {"peak_bytes": 2**30, "saved_bytes": 2**20, "saving_modules": 9}
    field = {"name": "nvml_power_draw_watts", "value": 300.0, "unit": "watts", "reason": ""}
    marks = {"nsys": "/bin/nsys", "exit_code": 0, "steps": [3], "warnings": [], "reports": ["a"]}
    return {
        "device_type": "cuda",
        "exit_code": 0,
        "memory": [{**memory, "snapshot_bytes": 4096, "warnings": []}],
        "fields": [{**field, "readings": 20}],
        "nsight": {**marks, **nsight},
    }


@pytest.mark.parametrize(
    ("lost", "passes"),
    [
        ({}, True),
        ({"nsys": "", "reports": []}, True),
        ({"reports": []}, False),
        ({"steps": []}, False),
        ({"warnings": ["marks for Nsight: no"]}, False),
    ],
)
def test_marks_need_a_report_where_nsys_is(judges: Any, lost: Any, passes: bool) -> None:
    assert judges.judge_parts(parts(**lost))[0] is passes


@pytest.mark.parametrize("refusal", [["error: --nvtx marks steps of CUDA devices"], []])
def test_on_a_cpu_marks_are_refused(judges: Any, refusal: list[str]) -> None:
    marks = {"nsys": "", "exit_code": 2, "steps": [], "warnings": refusal, "reports": []}
    assert judges.judge_parts({**parts(**marks), "device_type": "cpu"})[0] is bool(refusal)


@pytest.mark.parametrize(
    ("device", "recorded", "passes"),
    [
        ("cuda", 1.1, True),
        ("cuda", 2.0, False),
        ("cuda", 0.5, False),
        ("cuda", None, False),
        ("cpu", 3.0, True),  # what other work takes there says nothing
    ],
)
def test_recorded_steps_on_a_gpu_take_as_long_as_measured_ones(
    judges: Any, device: str, recorded: float | None, passes: bool
) -> None:
    rank = {
        **{"device": device, "kernels": [1], "traces": ["t"], "warnings": []},
        "host": {"measures": "device idle", "launches": [1]},
        **{"step_seconds": recorded, "window_step_seconds": 1.0},
    }
    row = {"stack": "lora", "status": "ok", "answer": "nothing stands out", "ranks": [rank]}
    passed, said = judges.judge_profile({"profiles": [row]})
    assert passed is passes
    shown = "unknown" if recorded is None else f"{recorded:.2f}"
    assert said == f"lora: nothing stands out; recorded over measured steps: {shown}"


def test_a_profile_on_a_gpu_needs_a_snapshot_and_readings(judges: Any) -> None:
    without, unread = parts(), parts()
    without["memory"][0]["snapshot_bytes"] = 0
    unread["fields"][0]["readings"] = 0
    assert not judges.judge_parts(without)[0]
    assert not judges.judge_parts(unread)[0]


def cell(flush: bool, **changes: Any) -> dict[str, Any]:
    found = {"name": "rms_norm[forward-eager-tiny]", "flush": flush, "outcome": "passed"}
    timed = {"median_seconds": 1e-5, "clock": "cuda events", "cache_flushed": flush}
    return {**found, "reason": "", "distance": 0.0, "tolerance": 1.0, "peak_memory_bytes": 9} | {
        **timed,
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ({}, True),
        ({"cache_flushed": False}, False),
        ({"clock": "wall"}, False),
        ({"distance": 2.0}, False),
        ({"outcome": "failed", "reason": "invalid: output is off"}, False),
        ({"outcome": "skipped", "reason": "out of memory"}, False),
    ],
)
def test_cells_are_timed_with_both_caches(judges: Any, changes: Any, passes: bool) -> None:
    document = {"device": "cuda", "cells": [cell(False), cell(True, **changes)]}
    assert judges.judge_micro(document)[0] is passes

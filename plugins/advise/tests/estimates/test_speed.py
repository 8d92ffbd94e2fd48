"""A step is as slow as the scarcer resource of each of its operations."""

from __future__ import annotations

from pathlib import Path

import pytest
from accel_bench_advise.estimates.schema import Bounds, Footprint, Operations
from accel_bench_advise.estimates.speed import (
    RECENT_SESSIONS,
    Calibration,
    recent_results,
    roofline,
    speed_estimate,
    step_seconds,
)
from accel_bench_advise.estimates.target import Efficiency, cpu_peaks, gpu_peaks
from store.store_factory import make_result, make_session

from accel_bench.catalog.hardware import named_hardware
from accel_bench.result import Provenance
from accel_bench.store.database import open_store

WORK = (
    Operations(dtype="bfloat16", flops=989_400_000_000, moved_bytes=1, count=10),
    Operations(dtype="", flops=0, moved_bytes=3_352_000_000, count=5),
)
"""Operations on an H100: ten times a millisecond of products, five times one of copies."""


def step_of(*operations: Operations) -> Footprint:
    return Footprint(parts={}, phase="backward", operations=operations, processed=1)


def test_products_take_the_peak_and_copies_the_bandwidth_by_hand() -> None:
    peaks = gpu_peaks(named_hardware("h100-80gb").hardware, "highest")
    assert step_seconds(step_of(*WORK), peaks, Efficiency(1, 1, 0)) == pytest.approx(0.015)
    assert step_seconds(step_of(*WORK), peaks, Efficiency(0.5, 1, 0)) == pytest.approx(0.025)
    assert step_seconds(step_of(*WORK), peaks, Efficiency(1, 1, 0.01)) == pytest.approx(0.15)


def test_a_dtype_that_the_device_lacks_gives_no_speed() -> None:
    peaks = gpu_peaks(named_hardware("a100-sxm-80gb").hardware, "highest")
    fp8 = Operations(dtype="float8_e4m3fn", flops=1, moved_bytes=1, count=1)
    assert roofline(step_of(fp8), peaks) is None
    assert roofline(step_of(fp8), cpu_peaks(2)) is not None


def test_stored_rows_take_the_place_of_the_data_sheet() -> None:
    seconds = Bounds(low=1.0, high=4.0)
    assert speed_estimate(seconds, 100, "a").tokens_per_second == Bounds(low=25, high=100)
    rows = [Calibration(1.5, "a", "lora of m"), Calibration(2.0, "b", "base of m")]
    found = speed_estimate(seconds, 99, "a", rows)
    assert found.step_seconds.low == pytest.approx(1.35)
    assert found.step_seconds.high == pytest.approx(2.2)
    assert found.tokens_per_second.low == pytest.approx(45)
    assert found.basis == (
        "roofline, calibrated by 2 stored experiments on this device: lora of m, base of m"
    )
    assert found.calibrated_by == ("a", "b")


def test_imports_calibrate_nothing_and_crowd_out_no_session(tmp_path: Path) -> None:
    with open_store(tmp_path, write=True) as store:
        store.add_session(make_session())
        store.add(make_result("a"))
        store.add(make_result("b", round=1, provenance=Provenance(origin="exported", file="f")))
        for number in range(RECENT_SESSIONS):
            update = {"document": {"imported": "mllog"}, "started_at": "2027-01-01T00:00:00Z"}
            store.add_session(make_session(f"import-{number}").model_copy(update=update))
        assert [run.run_id for run in recent_results(store)] == ["a"]

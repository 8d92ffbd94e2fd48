"""A rate above a device's peak is refused, with the numbers."""

from __future__ import annotations

import pytest
from accel_bench_op.roofline_impl import above_peak, cache_bytes, declared_hardware

from accel_bench.catalog.hardware import named_hardware

H200 = named_hardware("h200-sxm")
CACHE = 50 * 2**20


def figures(seconds: float, flops: float = 0, moved: float = 0) -> dict[str, float]:
    found = {"flops_per_second": flops / seconds} if flops else {}
    return {**found, "bytes_moved": moved, "bytes_per_second": moved / seconds}


def test_more_operations_than_the_data_sheet_has_are_refused_by_dtype() -> None:
    peak = H200.hardware.peak("bfloat16")
    assert peak is not None
    assert above_peak(figures(1.0, flops=1.05 * peak), "bfloat16", H200, CACHE) == ""
    found = above_peak(figures(1.0, flops=1.2 * peak), "bfloat16", H200, CACHE)
    assert f"{1.2 * peak:.4g} FLOP/s in bfloat16 is more than h200-sxm can do" in found
    assert f"{peak:.4g} FLOP/s: " in found
    # Without rounding to tf32 a product in float32 has a lower peak.
    assert above_peak(figures(1.0, flops=0.5 * peak), "float32", H200, CACHE)


def test_more_bytes_than_memory_and_cache_can_bring_are_refused() -> None:
    bandwidth = H200.hardware.memory_bandwidth_bytes_per_second
    large, within = 100 * CACHE, CACHE / 2
    found = above_peak(figures(large / (1.3 * bandwidth), moved=large), "float32", H200, CACHE)
    assert "bytes/s beyond its cache of 52,428,800 bytes is more than h200-sxm can do" in found
    assert above_peak(figures(large / bandwidth, moved=large), "float32", H200, CACHE) == ""
    # What the cache holds need not come from memory.
    assert above_peak(figures(within / (9 * bandwidth), moved=within), "float32", H200, CACHE) == ""


@pytest.mark.parametrize(("known", "cached"), [(None, CACHE), (H200, None)])
def test_what_is_not_known_refuses_nothing(known: object, cached: int | None) -> None:
    rates = figures(1e-9, moved=2**40)
    assert above_peak(rates, "float32", known, cached) == ""  # type: ignore[arg-type]


def test_a_host_has_no_row() -> None:
    assert declared_hardware("cpu") is None and cache_bytes("cpu") is None

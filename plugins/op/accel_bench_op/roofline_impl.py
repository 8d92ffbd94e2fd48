"""Roofline of this machine: peaks measured once per process, and the minimum time of a call."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from accel_bench.catalog.hardware import NamedHardware, find_hardware
from accel_bench.machine.devices import computes_on_host
from accel_bench.modeling.tensors import device_index
from accel_bench.modeling.timing import back_to_back_seconds
from accel_bench_op.benchmark import as_dtype

MATMUL_SIZE, HOST_MATMUL_SIZE = 8192, 1024
"""Rows and columns of square matrices that reach the peak FLOP/s, on devices and hosts."""

COPIED_BYTES, HOST_COPIED_BYTES = 2**30, 2**27
"""Bytes of a buffer larger than any cache, on devices and hosts."""

ABOVE_PEAK = 1.1
"""Maximum ratio of a measured rate to the data sheet's peak: clocks vary by a few percent."""


@cache
def matmul_peak(device: str, dtype: str) -> float:
    """Return the measured FLOP/s of a large matrix product in a dtype."""
    kind = torch.device(device).type
    size = HOST_MATMUL_SIZE if computes_on_host(kind) else MATMUL_SIZE
    factor, other = (torch.randn(size, size, device=device).to(as_dtype(dtype)) for _ in range(2))
    return 2 * size**3 / back_to_back_seconds(lambda: torch.mm(factor, other), kind)


@cache
def copy_peak(device: str) -> float:
    """Return the measured bytes/s of a large copy; bytes read and bytes written both count."""
    kind = torch.device(device).type
    size = HOST_COPIED_BYTES if computes_on_host(kind) else COPIED_BYTES
    source, other = (torch.zeros(size, device=device, dtype=torch.int8) for _ in range(2))
    return 2 * size / back_to_back_seconds(lambda: other.copy_(source), kind)


def roofline_figures(
    seconds: float, flops: int | None, moved: int | None, device: str, dtype: str
) -> Mapping[str, Any]:
    """Return the rates of a call that takes `seconds`, and its fraction of the roofline.

    `flops` and `moved` are the call's FLOPs and bytes. The fraction is the minimum time of the call
    divided by `seconds`. The minimum time is FLOPs / peak of matrix products, or bytes / peak of
    copies, whichever is longer. Unknown values are left out. The peak is unknown without `dtype`,
    as for integers.
    """
    figures: dict[str, Any] = {}
    least = 0.0
    if flops:
        figures |= {"flops": flops, "flops_per_second": flops / seconds}
    if flops and dtype:
        peak = matmul_peak(device, dtype)
        figures["peak_flops_per_second"] = peak
        least = flops / peak
    if moved:
        peak = copy_peak(device)
        figures |= {"bytes_moved": moved, "bytes_per_second": moved / seconds}
        figures["peak_bytes_per_second"] = peak
        least = max(least, moved / peak)
    if least:
        figures["roofline_share"] = least / seconds
    return figures


def declared_hardware(device: str) -> NamedHardware | None:
    """Return a device's row in the table of peaks; None for a host or an unknown device."""
    place = torch.device(device)
    if computes_on_host(place.type):
        return None
    name = getattr(torch.get_device_module(place), "get_device_name", None)
    return None if name is None else find_hardware(str(name(device_index(place))))


def cache_bytes(device: str) -> int | None:
    """Return the bytes of a device's last-level cache; None if unknown."""
    place = torch.device(device)
    ask = getattr(torch.get_device_module(place), "get_device_properties", None)
    if computes_on_host(place.type) or ask is None:
        return None
    return int(getattr(ask(device_index(place)), "L2_cache_size", 0)) or None


def above_peak(
    figures: Mapping[str, Any], dtype: str, known: NamedHardware | None, cached: int | None
) -> str:
    """Return a sentence if a rate exceeds the device's peak; empty otherwise or if unknown.

    `figures` are a call's rates, and `known` is the device's row in the table of peaks. `cached` is
    the size of its cache in bytes: so many bytes of a call may come from the cache, and do not
    count.
    """
    if known is None:
        return ""
    rate = figures.get("flops_per_second", 0.0)
    peak = known.hardware.peak(dtype, torch.get_float32_matmul_precision())
    if peak is not None and rate > ABOVE_PEAK * peak:
        return _too_fast(f"{rate:.4g} FLOP/s in {dtype}", known.name, f"{peak:.4g} FLOP/s")
    moved, bandwidth = figures.get("bytes_moved"), known.hardware.memory_bandwidth_bytes_per_second
    if cached is None or not moved:
        return ""
    rate = figures["bytes_per_second"] * max(0, moved - cached) / moved
    if rate > ABOVE_PEAK * bandwidth:
        what = f"{rate:.4g} bytes/s beyond its cache of {cached:,} bytes"
        return _too_fast(what, known.name, f"{bandwidth:.4g} bytes/s")
    return ""


def _too_fast(rate: str, device: str, peak: str) -> str:
    return (
        f"{rate} is more than {device} can do, {peak}: the call leaves out work that the "
        "benchmark counts in its flops() or bytes_moved(), or its time is wrong"
    )

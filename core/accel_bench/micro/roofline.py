"""Peaks of this machine, measured once a process, and the least time that they leave a call."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from accel_bench.machine.devices import computes_on_host

MATMUL_SIZE, HOST_MATMUL_SIZE = 8192, 1024
"""Rows and columns of the square matrices whose product reaches the peak of a device, and of a
host."""

COPIED_BYTES, HOST_COPIED_BYTES = 2**30, 2**27
"""Sizes of a buffer that no cache holds, of a device and of a host."""


@cache
def matmul_peak(device: str, dtype: str) -> float:
    """Return the FLOP/s of a large matrix product in a dtype."""
    import torch

    from accel_bench.micro.benchmark import as_dtype
    from accel_bench.modeling.timing import back_to_back_seconds

    kind = torch.device(device).type
    size = HOST_MATMUL_SIZE if computes_on_host(kind) else MATMUL_SIZE
    one, other = (torch.randn(size, size, device=device).to(as_dtype(dtype)) for _ in range(2))
    return 2 * size**3 / back_to_back_seconds(lambda: torch.mm(one, other), kind)


@cache
def copy_peak(device: str) -> float:
    """Return the bytes/s of a large copy, which reads and writes."""
    import torch

    from accel_bench.modeling.timing import back_to_back_seconds

    kind = torch.device(device).type
    size = HOST_COPIED_BYTES if computes_on_host(kind) else COPIED_BYTES
    one, other = (torch.zeros(size, device=device, dtype=torch.int8) for _ in range(2))
    return 2 * size / back_to_back_seconds(lambda: other.copy_(one), kind)


def roofline_figures(
    seconds: float, flops: int | None, moved: int | None, device: str, dtype: str
) -> Mapping[str, Any]:
    """Return rates of a call, and the share of its roofline: the least seconds over its seconds.

    The least seconds are the longer of its FLOPs at the peak of products and its bytes at the peak
    of copies. What is not known is left out, as the peak of whole numbers (`dtype` empty) is.
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

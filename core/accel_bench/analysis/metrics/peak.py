"""The peak of the device that a run used, in the dtype that it really computed in."""

from __future__ import annotations

from accel_bench.catalog.hardware import peak_flops
from accel_bench.result import Result


def peak_flops_of(result: Result) -> float | None:
    """Dense peak of one device in FLOP/s; None where device or dtype are not known, never a guess.

    All ranks must have used the same device and computed in the same dtype.
    """
    found = set()
    for rank in result.ranks:
        name, dtype = rank.device.get("name"), rank.effective.get("matmul_dtype")
        if rank.device.get("type") == "cpu" or not name or not dtype:
            return None
        precision = rank.effective.get("float32_matmul_precision", "highest")
        found.add((str(name), str(dtype), str(precision)))
    return peak_flops(*found.pop()) if len(found) == 1 else None

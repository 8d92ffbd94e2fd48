"""Timing of a function by many calls in a row, which hide the costs of starting and waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.utils.benchmark

from accel_bench.machine.devices import of_torch_type

BLOCKS = 3
"""Number of blocks of calls, of which the median counts."""

BLOCK_SECONDS = 0.02
"""Least duration of a block, in seconds."""

LONGEST_BLOCK = 1000
"""Largest number of calls in a block."""


def back_to_back_seconds(call: Callable[[], Any], device_type: str) -> float:
    """Return the seconds of one call: the median over blocks of calls without waits between."""
    device = of_torch_type(device_type)

    def clock() -> float:
        device.synchronize()
        return time.perf_counter()

    timer = torch.utils.benchmark.Timer(
        "call()", globals={"call": call}, num_threads=torch.get_num_threads(), timer=clock
    )
    with torch.no_grad():
        once = timer.timeit(1).median
        calls = max(1, min(LONGEST_BLOCK, int(BLOCK_SECONDS / max(once, 1e-9))))
        return float(median(timer.timeit(calls).median for _ in range(BLOCKS)))

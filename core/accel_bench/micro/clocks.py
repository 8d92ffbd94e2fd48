"""Clocks for pytest-benchmark, which subtracts what they return at the two ends of a round."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class EventMark:
    """A point in the work of a GPU; the difference of two is the seconds between them."""

    def __init__(self) -> None:
        import torch

        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record()

    def __sub__(self, earlier: EventMark) -> float:
        """Return the seconds since an earlier mark; waits for the GPU, once a round."""
        self._event.synchronize()
        return float(earlier._event.elapsed_time(self._event)) / 1e3


def cuda_events() -> EventMark:
    """Mark the current stream, without waiting for it."""
    return EventMark()


def synchronized_perf_counter() -> float:
    """Return the host's clock when the GPU has done all its work."""
    import torch

    torch.cuda.synchronize()
    return time.perf_counter()


def clock_for(device_type: str, clock: str) -> Callable[[], Any]:
    """Return the clock that times a device of that type; `clock` is `events` or `wall`."""
    if device_type != "cuda":
        return time.perf_counter
    return cuda_events if clock == "events" else synchronized_perf_counter


class CacheFlush:
    """Empties the L2 cache of a GPU by writing a buffer of several times its size."""

    def __init__(self) -> None:
        import torch

        size = int(getattr(torch.cuda.get_device_properties(), "L2_cache_size", 0))
        self._buffer = torch.empty(max(4 * size, 2**26), dtype=torch.int8, device="cuda")

    def __call__(self) -> None:
        """Enqueue the writing; what is timed afterwards begins when it has ended."""
        self._buffer.zero_()

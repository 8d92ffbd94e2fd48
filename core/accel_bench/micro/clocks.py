"""Clocks for pytest-benchmark, which subtracts what they return at the two ends of a round."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from accel_bench.machine.device_type import DeviceType
from accel_bench.micro.roofline import cache_bytes


class Clock(NamedTuple):
    """What times the rounds of a cell."""

    name: str
    """Such as `wall`, the host's clock, or `cuda events`."""

    read: Callable[[], Any]
    """Returns a moment; two of them can be subtracted."""


class EventMark:
    """A point in the work of a device; the difference of two is the seconds between them."""

    def __init__(self, device: DeviceType) -> None:
        self._device = device
        self._event = device.make_event()
        self._event.record()

    def __sub__(self, earlier: EventMark) -> float:
        """Return the seconds since an earlier mark; waits for the device, once a round."""
        self._device.synchronize()
        return float(earlier._event.elapsed_time(self._event)) / 1e3


def synchronized_perf_counter(device: DeviceType) -> float:
    """Return the host's clock when the device has done all its work."""
    device.synchronize()
    return time.perf_counter()


def clock_for(device: DeviceType, wanted: str) -> Clock:
    """Return the clock that times a type of device; `wanted` is `events` or `wall`.

    Where such devices have no events that time, the host's clock waits for them.
    """
    if device.on_host:
        return Clock("wall", time.perf_counter)
    kind = device.torch_type
    if wanted == "events" and device.make_event() is not None:
        return Clock(f"{kind} events", partial(EventMark, device))
    return Clock(f"{kind} wall", partial(synchronized_perf_counter, device))


class CacheFlush:
    """Empties the L2 cache of a device by writing a buffer of several times its size."""

    def __init__(self, device: str) -> None:
        import torch

        size = max(4 * (cache_bytes(device) or 0), 2**26)
        self._buffer = torch.empty(size, dtype=torch.int8, device=device)

    def __call__(self) -> None:
        """Enqueue the writing; what is timed afterwards begins when it has ended."""
        self._buffer.zero_()

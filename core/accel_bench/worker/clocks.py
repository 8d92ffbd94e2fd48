"""How the end of a step is marked: on the host's clock, and with an event on devices that have
them."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any, Protocol


class Clock(Protocol):
    """Marks instants cheaply now, and gives the seconds between them later."""

    def reserve(self, marks: int) -> None:
        """Get ready for that many marks, so that marking allocates nothing on the device."""

    def mark(self) -> None:
        """Mark this instant without waiting for the device; more often than reserved is slower."""

    def synchronize(self) -> None:
        """Wait until the device has done all that was asked of it."""

    def read(self) -> tuple[list[float], list[float] | None]:
        """Seconds between consecutive marks on the host and on the device; forgets the marks."""


class HostClock:
    """The host's monotonic clock, for devices that compute before they return."""

    def __init__(self) -> None:
        self._marks: list[int] = []

    def reserve(self, marks: int) -> None:
        """Nothing to reserve."""

    def mark(self) -> None:
        """Read the clock."""
        self._marks.append(time.perf_counter_ns())

    def synchronize(self) -> None:
        """The host has nothing to wait for."""

    def read(self) -> tuple[list[float], list[float] | None]:
        """Seconds between consecutive marks."""
        marks, self._marks = self._marks, []
        return [(b - a) / 1e9 for a, b in pairwise(marks)], None


class CudaClock(HostClock):
    """CUDA events on the current stream, with the host's clock beside them."""

    def __init__(self) -> None:
        super().__init__()
        import torch

        self._cuda = torch.cuda
        self._free: list[Any] = []
        self._events: list[Any] = []

    def reserve(self, marks: int) -> None:
        """Create the events beforehand."""
        self._free = [self._cuda.Event(enable_timing=True) for _ in range(marks)]

    def mark(self) -> None:
        """Record an event on the device's stream, and read the host's clock."""
        event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)
        super().mark()

    def synchronize(self) -> None:
        """Wait for the device."""
        self._cuda.synchronize()

    def read(self) -> tuple[list[float], list[float] | None]:
        """Seconds between consecutive marks; the device must have passed them."""
        events, self._events = self._events, []
        device = [a.elapsed_time(b) / 1e3 for a, b in pairwise(events)]
        return super().read()[0], device

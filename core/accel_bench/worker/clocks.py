"""Clocks that record the ends of steps, by device events if possible; samples made of the times."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from accel_bench.engine import Batch, TokenCounts
from accel_bench.machine.clock import perf_counter_ns
from accel_bench.machine.device_type import DeviceType
from accel_bench.result import Sample
from accel_bench.run_context import Run

Lap: TypeAlias = tuple[list[tuple[int, TokenCounts]], Any]
"""Record of an ended step: counts of its micro-batches, and its loss, maybe still on the device."""


class HostClock:
    """Monotonic clock of the host, for devices without events.

    Its method `mark` records the time cheaply; the seconds between marks are computed later.
    """

    def __init__(self, synchronize: Callable[[], object] | None = None) -> None:
        self._marks: list[int] = []
        self._synchronize = synchronize

    def reserve(self, marks: int) -> None:
        """Prepare for `marks` calls of `mark`, so that none allocates memory on the device."""

    def mark(self) -> None:
        """Record the time, without waiting for the device; more marks than reserved are slower."""
        self._marks.append(perf_counter_ns())

    def synchronize(self) -> None:
        """Wait until the device has done all submitted work."""
        if self._synchronize is not None:
            self._synchronize()

    def read(self) -> tuple[list[float], list[float] | None]:
        """Return the seconds between marks by the host's clock and the device's (or None); forget
        the marks. Waits for a device with events: never call this within a measured window."""
        marks, self._marks = self._marks, []
        return [(b - a) / 1e9 for a, b in pairwise(marks)], None


class EventClock(HostClock):
    """Clock whose marks are events on the device's current stream, besides times of the host."""

    def __init__(self, device: DeviceType) -> None:
        super().__init__(device.synchronize)
        self._make_event = device.make_event
        self._free: list[Any] = []
        self._events: list[Any] = []

    def reserve(self, marks: int) -> None:
        self._free = [self._make_event() for _ in range(marks)]

    def mark(self) -> None:
        event = self._free.pop() if self._free else self._make_event()
        event.record()
        self._events.append(event)
        super().mark()

    def read(self) -> tuple[list[float], list[float] | None]:
        # CUDA refuses the time between events unless both have completed, and even one that was
        # recorded on an idle device completes a while later.
        self.synchronize()
        events, self._events = self._events, []
        device = [a.elapsed_time(b) / 1e3 for a, b in pairwise(events)]
        return super().read()[0], device


def clock_of(run: Run) -> HostClock:
    """Return a new clock for the device of a run."""
    return clock_for(run.device_type)


def clock_for(device: DeviceType) -> HostClock:
    """Return a new clock for a type of device, with device events if the type has them."""
    if device.on_host:
        return HostClock()
    has_events = device.make_event() is not None
    return EventClock(device) if has_events else HostClock(device.synchronize)


def counted(batches: Sequence[Batch]) -> list[tuple[int, TokenCounts]]:
    """Return the number of sequences and the token counts of each micro-batch of a step."""
    return [(batch.sequences, batch.tokens) for batch in batches]


def sample_of(
    step: int,
    host_seconds: float,
    device_seconds: float | None,
    counts: list[tuple[int, TokenCounts]],
    loss: Any,
) -> Sample:
    """Return the sample of a step, with the sums of `counts` over its micro-batches."""
    value = float(loss)
    return Sample(
        step=step,
        seconds=host_seconds if device_seconds is None else device_seconds,
        device_seconds=device_seconds,
        sequences=sum(sequences for sequences, _ in counts),
        processed_tokens=sum(tokens.processed for _, tokens in counts),
        real_tokens=sum(tokens.real for _, tokens in counts),
        supervised_tokens=sum(tokens.supervised for _, tokens in counts),
        real_pairs=_sum_of_known([tokens.real_pairs for _, tokens in counts]),
        processed_pairs=_sum_of_known([tokens.processed_pairs for _, tokens in counts]),
        loss=value if math.isfinite(value) else None,
    )


def samples_of(
    first: int, seconds: tuple[list[float], list[float] | None], laps: Sequence[Lap]
) -> list[Sample]:
    """Return the samples of the steps `laps`, numbered from `first`; `seconds` holds the steps'
    times by the host's clock and by the device's (or None)."""
    host, device = seconds
    return [
        sample_of(first + i, host[i], None if device is None else device[i], *lap)
        for i, lap in enumerate(laps)
    ]


def _sum_of_known(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None

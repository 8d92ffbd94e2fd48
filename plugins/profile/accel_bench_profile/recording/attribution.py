"""Attribution of profiled time to modules, kinds of operations and directions.

The place of a host operation is the module whose range contains it, or in the backward pass the
module of the operation being differentiated. Each moment of a step then belongs to one place: on a
CPU the place of the main thread's innermost operation, on a device the place of the running kernel.
The times therefore add up to the steps, even where work overlaps.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from accel_bench_profile.figures.modules import ModuleTime, ModuleTimes, StepPart
from accel_bench_profile.figures.spans import Cycle, Interval, innermost, union
from accel_bench_profile.recording.operation_places import (
    OF_PHASE,
    HostPlaces,
    computing,
    kernel_place,
)

NUMBER = re.compile(r"(?:(?<=\.)|^)\d+(?=\.|$)")
"""Pattern of a layer's number in a path."""


class Segment(NamedTuple):
    """Time interval that belongs to one step part; `call` numbers its operation, -1 for none."""

    start: int
    end: int
    place: StepPart
    call: int = -1


def attribute(
    cycles: Sequence[Cycle], roles: Mapping[str, str], unlike: Collection[str] = ()
) -> ModuleTimes | None:
    """Return the time of a mean recorded step by part; None without a step.

    `roles` has the kind of the operations that a module itself calls, by the module's path.
    `unlike` are paths of numbered modules that differ in class from their siblings.
    """
    cycles = [cycle for cycle in cycles if cycle.steps]
    steps = sum(len(cycle.steps) for cycle in cycles)
    if not steps:
        return None
    totals = _Totals(steps, unlike)
    compiled: set[str] = set()
    for cycle in cycles:
        host = HostPlaces(cycle, roles)
        totals.add(_segments(cycle, host), host.events)
        compiled |= {folded(module, unlike) for module in host.compiled}
    return ModuleTimes(
        steps=steps,
        step_seconds=sum(_whole(c)[1] - _whole(c)[0] for c in cycles) / 1e9 / steps,
        times=totals.times(),
        compiled=tuple(sorted(compiled)),
        device=any(cycle.device for cycle in cycles),
    )


def folded(path: str, unlike: Collection[str] = ()) -> str:
    """Return a module's path with `*` for layers' numbers, except in the paths in `unlike`."""

    def fold(number: re.Match[str]) -> str:
        return number[0] if path[: number.end()] in unlike else "*"

    return NUMBER.sub(fold, path)


class _Totals:
    """Sums of time by part of a step, with `*` for the numbers of layers."""

    def __init__(self, steps: int, unlike: Collection[str]) -> None:
        self._steps = steps
        self._unlike = unlike
        self._events: Counter[StepPart] = Counter()
        self._seconds: dict[StepPart, float] = defaultdict(float)
        self._calls: Counter[StepPart] = Counter()

    def add(self, segments: Iterable[Segment], events: Mapping[StepPart, int]) -> None:
        """Add the time segments of a series of steps, and its numbers of events by step part."""
        for place, number in events.items():
            self._events[self._key(place)] += number
        counted: set[int] = {-1}
        for segment in segments:
            if segment.end > segment.start:
                key = self._key(segment.place)
                self._seconds[key] += (segment.end - segment.start) / 1e9
                self._calls[key] += segment.call not in counted
                counted.add(segment.call)

    def times(self) -> tuple[ModuleTime, ...]:
        """Return the times of a mean step by part, the longest first."""
        return tuple(
            ModuleTime(
                module=key.module,
                kind=key.kind,
                direction=key.direction,
                seconds=self._seconds[key] / self._steps,
                calls=self._calls[key] / self._steps,
                events=self._events[key] / self._steps,
            )
            for key in sorted(self._seconds, key=lambda key: -self._seconds[key])
        )

    def _key(self, place: StepPart) -> StepPart:
        return place._replace(module=folded(place.module, self._unlike), role="")


def _whole(cycle: Cycle) -> Interval:
    """Return the interval of a series of recorded steps, from the first start to the last end."""
    return cycle.steps[0].start, max(step.end for step in cycle.steps)


def _segments(cycle: Cycle, host: HostPlaces) -> Iterable[Segment]:
    if cycle.device:
        return _device_segments(cycle, host)
    under_way = [(span.start, span.end) for span in host.collectives]
    return _covered(_host_segments(cycle, host), under_way)


def _host_segments(cycle: Cycle, host: HostPlaces) -> Iterator[Segment]:
    """Yield segments of the main thread, each with the step part of its innermost operation."""
    at, end = _whole(cycle)
    lane = host.lanes[cycle.lane]
    spans = [span for span, _ in lane]
    counted = computing(spans)
    for start, until, number in innermost(spans):
        first, last = max(start, at), min(until, end)
        yield Segment(at, min(first, end), host.placed(StepPart(), at))
        call = number if number in counted else -1
        yield Segment(first, last, host.placed(lane[number][1], first), call)
        at = max(at, last)
    yield Segment(at, end, host.placed(StepPart(), at))


def _device_segments(cycle: Cycle, host: HostPlaces) -> Iterator[Segment]:
    """Yield the device's time in segments: computing kernels, and gaps of collectives or idle time.

    A gap belongs to the module of the kernel after it, which was launched late.
    """
    at, end = _whole(cycle)
    kernels = [(kernel, kernel_place(kernel, host)) for kernel in cycle.device]
    collectives = [(e.start, e.end) for e, place in kernels if place.kind == "communication"]
    gaps: list[Segment] = []
    for number, (kernel, place) in enumerate(sorted(kernels, key=lambda pair: pair[0].start)):
        first, last = max(kernel.start, at), min(kernel.end, end)
        if last > first and place.kind != "communication":
            gaps.append(Segment(at, first, place._replace(kind="idle")))
            yield Segment(first, last, place, number)
            at = last
    gaps.append(Segment(at, end, StepPart()))
    for gap in _covered(gaps, cycle.times_of("data"), OF_PHASE["data"]):
        yield from _covered([gap], collectives)


def _covered(
    segments: Iterable[Segment], intervals: Sequence[Interval], by: StepPart | None = None
) -> Iterator[Segment]:
    """Yield segments, with the idle ones split at the edges of `intervals`.

    Idle time within the intervals goes to the part `by`, or if that is None to the segment's module
    as communication.
    """
    spans = union(intervals)
    starts = [start for start, _ in spans]
    for segment in segments:
        if segment.place.kind != "idle" or not spans:
            yield segment
            continue
        at, waiting = segment.start, by or segment.place._replace(kind="communication")
        first = max(0, bisect_right(starts, segment.start) - 1)
        for start, end in spans[first : bisect_right(starts, segment.end)]:
            low, high = max(at, start), min(segment.end, end)
            if high > low:
                yield Segment(at, low, segment.place, segment.call)
                yield Segment(low, high, waiting)
                at = high
        yield Segment(at, segment.end, segment.place, segment.call)

"""Times in which a step stands still: a device without work, a CPU in no operation of torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from statistics import median

from accel_bench_profile.figures.kinds import BACKEND, READ, WAITS, computes, kind_of
from accel_bench_profile.figures.schema import Gap, HostReads, HostTime, LaunchGaps, Place
from accel_bench_profile.figures.spans import (
    Cycle,
    Interval,
    Span,
    length,
    mean_step,
    union,
    within,
    without,
)

LONG = 1_000_000
"""Nanoseconds from which on a single gap is long: Python between two operations takes less."""

MOST_PLACES = 5
"""Places of gaps and of reads that are kept."""

NO_LAUNCHES = "no kernels of a device were recorded; a CPU has none"


def host_time(cycles: Sequence[Cycle]) -> HostTime | None:
    """Return where the recorded steps stood still; None where no step was recorded."""
    steps = [(cycle, step) for cycle in cycles for step in cycle.steps]
    if not steps:
        return None
    known = [one for cycle in cycles for _, one in cycle.taken]
    on_device = any(cycle.device for cycle in cycles)
    idle = _device_idle if on_device else _no_operation
    gaps = [(cycle, idle(cycle, step)) for cycle, step in steps]
    whole = sum(step.end - step.start for _, step in steps)
    still = sum(length(found) for _, found in gaps)
    waited = sum(length(within(_waits(cycle), step)) for cycle, step in steps)
    return HostTime(
        measures="device idle" if on_device else "no operation",
        seconds=still / len(steps) / 1e9,
        share=still / whole if whole else 0.0,
        waiting_seconds=waited / len(steps) / 1e9 if on_device else None,
        preempted_seconds=sum(known) / len(steps) / 1e9 if known else None,
        gaps=_places(gaps),
        reads=_reads(steps, on_device),
        launches=_launches(cycles, len(steps)) if on_device else None,
        launches_reason="" if on_device else NO_LAUNCHES,
    )


def _no_operation(cycle: Cycle, step: Span) -> list[Interval]:
    """Return the pieces of a step in no operation that computes, and in no collective."""
    computing = [one for one in cycle.operations if computes(one.name)]
    busy = within([*computing, *collectives_of(cycle)], step)
    return without([(step.start, step.end)], busy)


def collectives_of(cycle: Cycle) -> list[Span]:
    """Return kernels of collectives; on a CPU their calls, and what the backend does for them."""
    if cycle.device:
        return [one for one in cycle.device if kind_of(one.name) == "communication"]
    return [
        one
        for one in cycle.spans
        if (one.kind == "operation" and kind_of(one.name) == "communication")
        or (one.kind == "range" and BACKEND.search(one.name))
    ]


def _device_idle(cycle: Cycle, step: Span) -> list[Interval]:
    """Return the pieces of a step in which the device is idle and the host does not wait for it."""
    idle = without([(step.start, step.end)], within(cycle.device, step))
    return without(without(idle, within(_waits(cycle), step)), union(cycle.edges))


def _waits(cycle: Cycle) -> Iterator[Span]:
    """Yield where the host waits for the device, but for the profile itself."""
    for one in cycle.spans:
        if one.kind == "runtime" and WAITS.search(one.name):
            if not any(start <= one.start <= end for start, end in cycle.edges):
                yield one


def _places(gaps: Sequence[tuple[Cycle, list[Interval]]]) -> tuple[Gap, ...]:
    """Return the places of long gaps, with what they add up to there in the step with the least."""
    whole: list[dict[Place, int]] = []
    less_taken: list[dict[Place, int]] = []
    for cycle, found in gaps:
        sums: dict[Place, int] = defaultdict(int)
        left: dict[Place, int] = defaultdict(int)
        for start, end in found:
            if end - start >= LONG:
                place = cycle.place_at((start + end) // 2)
                sums[place] += end - start
                left[place] += max(0, end - start - cycle.taken_from(start, end))
        whole.append(sums)
        less_taken.append(left)
    names = {place for sums in whole for place in sums}
    least = {place: min(sums.get(place, 0) for sums in whole) for place in names}
    own = {place: min(left.get(place, 0) for left in less_taken) for place in names}
    longest = sorted(names, key=lambda place: (-own[place], -least[place]))[:MOST_PLACES]
    return tuple(
        Gap(place=one, seconds=least[one] / 1e9, own_seconds=own[one] / 1e9)
        for one in longest
        if least[one]
    )


def _reads(steps: Sequence[tuple[Cycle, Span]], on_device: bool) -> tuple[HostReads, ...]:
    """Return where values are read, or on a device where the host waits for it.

    On a CPU without those of the optimizer, which keeps its step numbers on the host everywhere,
    and of the data, whose batches are on the host everywhere.
    """
    calls = (
        (cycle.place_at(one.start), one.end - one.start)
        for cycle, step in steps
        for one in (_waits(cycle) if on_device else cycle.operations)
        if step.start <= one.start < step.end and (on_device or one.name == READ)
    )
    found = [
        HostReads(place=place, calls=number, seconds=seconds)
        for place, (number, seconds) in mean_step(calls, len(steps)).items()
        if on_device or place.phase not in ("data", "optimizer")
    ]
    most = sorted(found, key=lambda one: (-one.seconds if on_device else 0, -one.calls))
    return tuple(most[:MOST_PLACES])


def _launches(cycles: Sequence[Cycle], steps: int) -> LaunchGaps:
    """Return how late kernels were launched, by the calls that they share a correlation with."""
    late = idle = kernels = 0
    delays: list[int] = []
    for cycle in cycles:
        device = sorted(cycle.device, key=lambda one: one.start)
        ended = accumulate((one.end for one in device), max)
        for one, before in zip(device[1:], ended, strict=False):
            call = cycle.launches.get(one.correlation)
            if call is not None and call.start >= before:
                late += 1
                idle += one.start - before
        kernels += len(device)
        both = ((cycle.launches.get(one.correlation), one) for one in device)
        delays += [one.start - call.start for call, one in both if call is not None]
    return LaunchGaps(
        kernels=kernels / steps,
        late=late / steps,
        seconds=idle / steps / 1e9,
        median_seconds=median(delays) / 1e9 if delays else None,
    )

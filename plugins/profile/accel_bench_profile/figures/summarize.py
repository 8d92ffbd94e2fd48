"""Profile of a rank from its recorded cycles: kernels, collectives, idle time.

A step is idle while a device has no work, or a CPU runs no operation of torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from statistics import fmean, median
from typing import Any

from accel_bench_profile.figures.kernel_kinds import (
    BACKEND,
    READ,
    WAITS,
    computes,
    fused_by,
    kind_of,
    kind_of_operation,
)
from accel_bench_profile.figures.schema import (
    CallTime,
    CommunicationTime,
    FusedKernel,
    Gap,
    HostReads,
    HostTime,
    KernelTime,
    Kind,
    LaunchGaps,
    ModulePhase,
)
from accel_bench_profile.figures.spans import (
    Cycle,
    Interval,
    Span,
    length,
    mean_step,
    self_times,
    union,
    within,
    without,
)

OPTIMIZER = "Optimizer.step#"
"""Prefix of torch's range of an optimizer step."""

LONG = 1_000_000
"""Nanoseconds from which a single gap is long; Python between two operations takes less."""

MOST_PLACES = 5
"""Maximum number of modules and phases stored for gaps, and for reads."""


def kernel_times(cycles: Sequence[Cycle], steps: int) -> list[KernelTime]:
    """Return calls and seconds of each device kernel, or on a CPU of each operation.

    They are means over the recorded steps, of which there are `steps`. The longest come first.
    """
    timed = mean_step((call for cycle in cycles for call in _timed(cycle)), steps)
    kernels = [
        KernelTime(name=name, kind=kind, calls=calls, seconds=seconds)
        for (name, kind), (calls, seconds) in timed.items()
    ]
    return sorted(kernels, key=lambda kernel: (-kernel.seconds, kernel.name))


def foremost(kernels: Sequence[KernelTime], most: int) -> tuple[KernelTime, ...]:
    """Return the `most` longest and the `most` most frequent kernels, the longest first."""
    frequent = sorted(kernels, key=lambda kernel: -kernel.calls)[:most]
    kept = {id(kernel) for kernel in (*kernels[:most], *frequent)}
    return tuple(kernel for kernel in kernels if id(kernel) in kept)


def seconds_by_kind(kernels: Sequence[KernelTime]) -> dict[Kind, float]:
    """Return the seconds of kernels per mean step by kind, the largest first."""
    sums: dict[Kind, float] = {}
    for kernel in kernels:
        sums[kernel.kind] = sums.get(kernel.kind, 0.0) + kernel.seconds
    return dict(sorted(sums.items(), key=lambda pair: -pair[1]))


def fused_kernels(kernels: Sequence[KernelTime]) -> tuple[FusedKernel, ...]:
    """Return the kernels whose names show fusion."""
    return tuple(
        FusedKernel(name=kernel.name, what=what, calls=kernel.calls, seconds=kernel.seconds)
        for kernel in kernels
        if (what := fused_by(kernel.name))
    )


def _timed(cycle: Cycle) -> Iterator[tuple[tuple[str, Kind], int]]:
    """Yield name, kind and nanoseconds of each recorded kernel, or on a CPU of each operation."""
    ranges = cycle.ranges(OPTIMIZER)
    optimizer = [piece for step in cycle.steps for piece in within(ranges, step)]
    if cycle.device:
        for span in cycle.device:
            call = cycle.launches.get(span.correlation)
            launched = -1 if call is None else call.start
            kind = _kind(kind_of(span.name), launched, optimizer)
            yield (span.name, kind), span.end - span.start
        return
    in_steps = union((step.start, step.end) for step in cycle.steps)
    for span, own in self_times(cycle.operations):
        if _holds(in_steps, span.start):
            yield (span.name, _kind(kind_of_operation(span.name), span.start, optimizer)), own


def _kind(kind: Kind, moment: int, optimizer: Sequence[Interval]) -> Kind:
    """Return `optimizer` if `moment` is within an optimizer step, else `kind`.

    The kind `communication` stays. `optimizer` are the intervals of optimizer steps.
    """
    return "optimizer" if kind != "communication" and _holds(optimizer, moment) else kind


def _holds(intervals: Sequence[Interval], moment: int) -> bool:
    return any(start <= moment < end for start, end in intervals)


def communication_time(cycles: Sequence[Cycle]) -> CommunicationTime | None:
    """Return the communication time of a mean step, or None if there was no collective."""
    steps = [(cycle, step) for cycle in cycles for step in cycle.steps]
    by_step = [(step, collectives_of(cycle), _computing(cycle)) for cycle, step in steps]
    if not any(collectives for _, collectives, _ in by_step):
        return None
    whole = sum(step.end - step.start for step, _, _ in by_step)
    under_way = [within(collectives, step) for step, collectives, _ in by_step]
    spent = sum(map(length, under_way))
    exposed = sum(
        length(without(pieces, within(computing, step)))
        for pieces, (step, _, computing) in zip(under_way, by_step, strict=True)
    )
    return CommunicationTime(
        seconds=spent / len(steps) / 1e9,
        exposed_seconds=exposed / len(steps) / 1e9,
        share=spent / whole,
        exposed_share=exposed / whole,
        collectives=_by_name(cycles, len(steps)),
    )


def _computing(cycle: Cycle) -> list[Span]:
    if cycle.device:
        return [span for span in cycle.device if kind_of(span.name) != "communication"]
    return [span for span in cycle.operations if computes(span.name)]


def _by_name(cycles: Sequence[Cycle], steps: int) -> tuple[CallTime, ...]:
    """Return mean calls and seconds of collectives by name, the longest first.

    On a CPU only the backend's collectives count, so that none counts twice.
    """
    spans = [span for cycle in cycles for span in collectives_of(cycle)]
    backend = [span for span in spans if span.kind == "range"]
    times = mean_step(((span.name, span.end - span.start) for span in backend or spans), steps)
    named = (CallTime(name=name, calls=c, seconds=s) for name, (c, s) in times.items())
    return tuple(sorted(named, key=lambda call: -call.seconds))


def figures_of(cycles: Sequence[Cycle], top: int) -> dict[str, Any]:
    """Return fields of a `RankProfile` from cycles, which are series of recorded steps.

    Without any step, the field `steps` is 0. `top` is the number of kernels to keep by time, and
    again by number of calls.
    """
    cycles = [cycle for cycle in cycles if cycle.steps]
    steps = [step for cycle in cycles for step in cycle.steps]
    if not steps:
        return {"steps": 0, "step_seconds": None}
    kernels = kernel_times(cycles, len(steps))
    return {
        "steps": len(steps),
        "step_seconds": _step_seconds(cycles),
        "kernel_seconds": sum(kernel.seconds for kernel in kernels),
        "kernels": foremost(kernels, top),
        "kinds": seconds_by_kind(kernels),
        "fused": fused_kernels(kernels),
        "host": host_time(cycles),
        "communication": communication_time(cycles),
    }


def _step_seconds(cycles: Sequence[Cycle]) -> float:
    """Return the median seconds of a recorded step.

    With a device it is the median of the mean steps of the cycles, which are series of steps: the
    host runs ahead of the device, so that a cycle's last step includes the time of earlier steps.
    """
    if any(cycle.device for cycle in cycles):
        means = [fmean(step.end - step.start for step in cycle.steps) for cycle in cycles]
        return median(means) / 1e9
    return median(step.end - step.start for cycle in cycles for step in cycle.steps) / 1e9


def host_time(cycles: Sequence[Cycle]) -> HostTime:
    """Return the idle time of a mean recorded step."""
    steps = [(cycle, step) for cycle in cycles for step in cycle.steps]
    known = [spent for cycle in cycles for _, spent in cycle.preempted]
    on_device = any(cycle.device for cycle in cycles)
    idle = _device_idle if on_device else _no_operation
    gaps = [(cycle, idle(cycle, step)) for cycle, step in steps]
    whole = sum(step.end - step.start for _, step in steps)
    still = sum(length(pieces) for _, pieces in gaps)
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
    )


def _no_operation(cycle: Cycle, step: Span) -> list[Interval]:
    """Return the intervals of a step without any computing operation or collective."""
    busy = within([*_computing(cycle), *collectives_of(cycle)], step)
    return without([(step.start, step.end)], busy)


def collectives_of(cycle: Cycle) -> list[Span]:
    """Return the spans of collectives: kernels, or on a CPU operations and the backend's ranges."""
    if cycle.device:
        return [span for span in cycle.device if kind_of(span.name) == "communication"]
    return [
        span
        for span in cycle.spans
        if (span.kind == "operation" and kind_of(span.name) == "communication")
        or (span.kind == "range" and BACKEND.search(span.name))
    ]


def _device_idle(cycle: Cycle, step: Span) -> list[Interval]:
    """Return the parts of a step in which the device is idle and the host does not wait."""
    idle = without([(step.start, step.end)], within(cycle.device, step))
    return without(without(idle, within(_waits(cycle), step)), union(cycle.edges))


def _waits(cycle: Cycle) -> Iterator[Span]:
    """Yield the calls in which the host waits for the device, without those of the profiler."""
    for span in cycle.spans:
        if span.kind == "runtime" and WAITS.search(span.name):
            if not any(start <= span.start <= end for start, end in cycle.edges):
                yield span


def _places(gaps: Sequence[tuple[Cycle, list[Interval]]]) -> tuple[Gap, ...]:
    """Return the idle time in long gaps by module and phase, from the step in which it is least."""
    whole: list[dict[ModulePhase, int]] = []
    less_taken: list[dict[ModulePhase, int]] = []
    for cycle, pieces in gaps:
        sums: dict[ModulePhase, int] = defaultdict(int)
        left: dict[ModulePhase, int] = defaultdict(int)
        for start, end in pieces:
            if end - start >= LONG:
                place = cycle.place_at((start + end) // 2)
                sums[place] += end - start
                left[place] += max(0, end - start - cycle.preempted_within(start, end))
        whole.append(sums)
        less_taken.append(left)
    names = {place for sums in whole for place in sums}
    least = {place: min(sums.get(place, 0) for sums in whole) for place in names}
    own = {place: min(left.get(place, 0) for left in less_taken) for place in names}
    longest = sorted(names, key=lambda place: (-own[place], -least[place]))[:MOST_PLACES]
    return tuple(
        Gap(place=place, seconds=least[place] / 1e9, own_seconds=own[place] / 1e9)
        for place in longest
        if least[place]
    )


def _reads(steps: Sequence[tuple[Cycle, Span]], on_device: bool) -> tuple[HostReads, ...]:
    """Return the host's waits for the device if `on_device`, else its reads of tensors.

    They are summed by module and phase. On a CPU, reads in the optimizer and data phases are left
    out: step numbers and batches are on the host on a GPU too, and nothing would wait.
    """
    calls = (
        (cycle.place_at(span.start), span.end - span.start)
        for cycle, step in steps
        for span in (_waits(cycle) if on_device else cycle.operations)
        if step.start <= span.start < step.end and (on_device or span.name == READ)
    )
    reads = [
        HostReads(place=place, calls=number, seconds=seconds)
        for place, (number, seconds) in mean_step(calls, len(steps)).items()
        if on_device or place.phase not in ("data", "optimizer")
    ]
    most = sorted(reads, key=lambda read: (-read.seconds if on_device else 0, -read.calls))
    return tuple(most[:MOST_PLACES])


def _launches(cycles: Sequence[Cycle], steps: int) -> LaunchGaps:
    """Return figures on kernels that were launched late, and the median delay of all launches."""
    late = idle = kernels = 0
    delays: list[int] = []
    for cycle in cycles:
        device = sorted(cycle.device, key=lambda span: span.start)
        ended = accumulate((span.end for span in device), max)
        for span, before in zip(device[1:], ended, strict=False):
            call = cycle.launches.get(span.correlation)
            if call is not None and call.start >= before:
                late += 1
                idle += span.start - before
        kernels += len(device)
        both = ((cycle.launches.get(span.correlation), span) for span in device)
        delays += [span.start - call.start for call, span in both if call is not None]
    return LaunchGaps(
        kernels=kernels / steps,
        late=late / steps,
        seconds=idle / steps / 1e9,
        median_seconds=median(delays) / 1e9 if delays else None,
    )

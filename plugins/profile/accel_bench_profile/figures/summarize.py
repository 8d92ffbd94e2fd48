"""Make the profile of a rank out of its recorded cycles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import Any

from accel_bench_profile.figures.host import collectives_of, host_time
from accel_bench_profile.figures.kinds import (
    computes,
    fused_by,
    kind_of,
    kind_of_operation,
)
from accel_bench_profile.figures.schema import (
    CallTime,
    CommunicationTime,
    FusedKernel,
    KernelTime,
    Kind,
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
"""How torch calls the range of an optimizer's step."""


def kernel_times(cycles: Sequence[Cycle], steps: int) -> list[KernelTime]:
    """Return all kernels of the device, or all operations where there is none, the longest first.

    Calls and seconds are those of a mean step.
    """
    timed = mean_step((one for cycle in cycles for one in _timed(cycle)), steps)
    found = [
        KernelTime(name=name, kind=kind, calls=calls, seconds=seconds)
        for (name, kind), (calls, seconds) in timed.items()
    ]
    return sorted(found, key=lambda one: (-one.seconds, one.name))


def foremost(kernels: Sequence[KernelTime], most: int) -> tuple[KernelTime, ...]:
    """Return those with the most time and those with the most calls, the longest first."""
    frequent = sorted(kernels, key=lambda one: -one.calls)[:most]
    kept = {id(one) for one in (*kernels[:most], *frequent)}
    return tuple(one for one in kernels if id(one) in kept)


def seconds_by_kind(kernels: Sequence[KernelTime]) -> dict[Kind, float]:
    """Return the seconds of each kind in a mean step, the longest first."""
    sums: dict[Kind, float] = {}
    for one in kernels:
        sums[one.kind] = sums.get(one.kind, 0.0) + one.seconds
    return dict(sorted(sums.items(), key=lambda pair: -pair[1]))


def fused_kernels(kernels: Sequence[KernelTime]) -> tuple[FusedKernel, ...]:
    """Return those whose name is evidence that they are fused."""
    both = ((one, fused_by(one.name)) for one in kernels)
    return tuple(
        FusedKernel(name=one.name, what=what, calls=one.calls, seconds=one.seconds)
        for one, what in both
        if what
    )


def _timed(cycle: Cycle) -> Iterator[tuple[tuple[str, Kind], int]]:
    """Yield name, kind and nanoseconds of each kernel, or of each operation of a recorded step."""
    ranges = cycle.ranges(OPTIMIZER)
    optimizer = [piece for step in cycle.steps for piece in within(ranges, step)]
    if cycle.device:
        for one in cycle.device:
            call = cycle.launches.get(one.correlation)
            launched = -1 if call is None else call.start
            kind = _kind(kind_of(one.name), launched, optimizer)
            yield (one.name, kind), one.end - one.start
        return
    in_steps = union((step.start, step.end) for step in cycle.steps)
    for one, own in self_times(cycle.operations):
        if _holds(in_steps, one.start):
            yield (one.name, _kind(kind_of_operation(one.name), one.start, optimizer)), own


def _kind(kind: Kind, moment: int, optimizer: Sequence[Interval]) -> Kind:
    """Return the kind by name; what an optimizer's step does otherwise is the optimizer."""
    return "optimizer" if kind != "communication" and _holds(optimizer, moment) else kind


def _holds(intervals: Sequence[Interval], moment: int) -> bool:
    return any(start <= moment < end for start, end in intervals)


def communication_time(cycles: Sequence[Cycle]) -> CommunicationTime | None:
    """Return the collectives of a mean step; None where there was none."""
    steps = [(cycle, step) for cycle in cycles for step in cycle.steps]
    found = [(step, collectives_of(cycle), _computing(cycle)) for cycle, step in steps]
    if not any(collectives for _, collectives, _ in found):
        return None
    whole = sum(step.end - step.start for step, _, _ in found)
    under_way = [within(collectives, step) for step, collectives, _ in found]
    spent = sum(map(length, under_way))
    exposed = sum(
        length(without(one, within(computing, step)))
        for one, (step, _, computing) in zip(under_way, found, strict=True)
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
        return [one for one in cycle.device if kind_of(one.name) != "communication"]
    return [one for one in cycle.operations if computes(one.name)]


def _by_name(cycles: Sequence[Cycle], steps: int) -> tuple[CallTime, ...]:
    """Return the collectives by name; on a CPU by what runs them, else they would count twice."""
    spans = [one for cycle in cycles for one in collectives_of(cycle)]
    backend = [one for one in spans if one.kind == "range"]
    found = mean_step(((one.name, one.end - one.start) for one in backend or spans), steps)
    named = (CallTime(name=name, calls=c, seconds=s) for name, (c, s) in found.items())
    return tuple(sorted(named, key=lambda one: -one.seconds))


def figures_of(cycles: Sequence[Cycle], top: int) -> dict[str, Any]:
    """Return the fields of a `RankProfile` that recorded cycles give; none without a step."""
    cycles = [cycle for cycle in cycles if cycle.steps]
    steps = [step for cycle in cycles for step in cycle.steps]
    if not steps:
        return {"steps": 0, "step_seconds": None}
    kernels = kernel_times(cycles, len(steps))
    return {
        "steps": len(steps),
        "step_seconds": _step_seconds(cycles),
        "kernel_seconds": sum(one.seconds for one in kernels),
        "kernels": foremost(kernels, top),
        "kinds": seconds_by_kind(kernels),
        "fused": fused_kernels(kernels),
        "host": host_time(cycles),
        "communication": communication_time(cycles),
    }


def _step_seconds(cycles: Sequence[Cycle]) -> float:
    """Return the median step.

    With a device that of the cycles' means: within a cycle the host may run ahead of it, so that
    the last step has the time of those before.
    """
    if any(cycle.device for cycle in cycles):
        means = [fmean(one.end - one.start for one in cycle.steps) for cycle in cycles]
        return median(means) / 1e9
    return median(step.end - step.start for cycle in cycles for step in cycle.steps) / 1e9

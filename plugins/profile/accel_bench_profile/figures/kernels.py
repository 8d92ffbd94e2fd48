"""Kernels of a device, or operations of a CPU, by time and by count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from accel_bench_profile.figures.kinds import fused_by, kind_of, kind_of_operation
from accel_bench_profile.figures.schema import FusedKernel, KernelTime, Kind
from accel_bench_profile.figures.spans import Cycle, Interval, Span, self_times, union, within

OPTIMIZER = "Optimizer.step#"
"""How torch calls the range of an optimizer's step."""


@dataclass
class _Total:
    kind: Kind
    calls: int = 0
    nanoseconds: int = 0


def kernel_times(cycles: Sequence[Cycle], steps: int) -> list[KernelTime]:
    """Return all kernels of the device, or all operations where there is none, the longest first.

    Calls and seconds are those of a mean step.
    """
    totals: dict[tuple[str, Kind], _Total] = {}
    for name, kind, nanoseconds in (one for cycle in cycles for one in _timed(cycle)):
        total = totals.setdefault((name, kind), _Total(kind))
        total.calls += 1
        total.nanoseconds += nanoseconds
    found = [
        KernelTime(
            name=name,
            kind=total.kind,
            calls=total.calls / steps,
            seconds=total.nanoseconds / steps / 1e9,
        )
        for (name, _), total in totals.items()
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


def _timed(cycle: Cycle) -> Iterator[tuple[str, Kind, int]]:
    """Yield name, kind and nanoseconds of each kernel, or of each operation of a recorded step."""
    optimizer = _optimizer(cycle)
    if cycle.device:
        launches = {
            one.correlation: one.start
            for one in cycle.spans
            if one.kind == "runtime" and one.correlation
        }
        for one in cycle.device:
            launched = launches.get(one.correlation, -1)
            yield one.name, _kind(kind_of(one.name), launched, optimizer), one.end - one.start
        return
    in_steps = union((step.start, step.end) for step in cycle.steps)
    for one, own in self_times(cycle.operations):
        if _holds(in_steps, one.start):
            yield one.name, _kind(kind_of_operation(one.name), one.start, optimizer), own


def _optimizer(cycle: Cycle) -> list[Interval]:
    ranges: list[Span] = [
        one for one in cycle.spans if one.kind == "range" and one.name.startswith(OPTIMIZER)
    ]
    return [piece for step in cycle.steps for piece in within(ranges, step)]


def _kind(kind: Kind, moment: int, optimizer: Sequence[Interval]) -> Kind:
    """Return the kind by name; what an optimizer's step does otherwise is the optimizer."""
    return "optimizer" if kind != "communication" and _holds(optimizer, moment) else kind


def _holds(intervals: Sequence[Interval], moment: int) -> bool:
    return any(start <= moment < end for start, end in intervals)

"""Test of whether memory grows with the steps: a leak raises the floor of memory in use.

Readings of the later steps are cut into blocks. The minimum of each block is used, since temporary
allocations come on top of it. Memory is growing if the slope of these minima is significantly above
0 in both halves, which excludes a rise that ends, and the growth is not negligible.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Literal, NamedTuple

from accel_bench.analysis.statistics.estimators import Interval, t_quantile
from accel_bench.result import MemoryReading, RankResult
from accel_bench_report.learning.groups import LearningGroup
from accel_bench_report.learning.schema import MemoryGrowth

LEFT_OUT = 0.25
"""Fraction of the first steps to ignore, in which allocators still fill their pools."""

BLOCKS = 12
"""Number of blocks into which the readings of the remaining steps are cut."""

MINIMUM_STEPS = 32
"""Minimum number of steps for a test of growth."""

LEAST_BYTES = 1 << 20
LEAST_FRACTION = 0.005
"""Minimum growth over all blocks that counts as growth: 1 MiB, and 0.5 % of the memory in use."""


class Slope(NamedTuple):
    """Slope of a rank's memory in bytes per step, with a 95 % t interval."""

    interval: Interval
    grows: bool
    steps: int
    kind: Literal["allocated", "rss"]


def memory_growth(group: LearningGroup) -> MemoryGrowth:
    """Return the steepest slope of memory over a group's runs and ranks, with the verdict.

    Memory grows by the verdict if it grows in most runs. The verdict is `not tested` if no run has
    enough readings.
    """
    by_run = [
        [slope for rank in run.ranks if (slope := slope_of(rank)) is not None] for run in group.runs
    ]
    by_run = [slopes for slopes in by_run if slopes]
    if not by_run:
        reason = f"it takes evaluate.steps of {MINIMUM_STEPS} or more to see growth"
        return MemoryGrowth(verdict="not tested", reason=reason)
    growing = sum(any(slope.grows for slope in slopes) for slopes in by_run)
    every = [slope for slopes in by_run for slope in slopes]
    steepest = max(every, key=lambda slope: (slope.grows, slope.interval.median))
    return MemoryGrowth(
        verdict="holds" if 2 * growing > len(by_run) else "does not hold",
        kind=steepest.kind,
        bytes_per_step=steepest.interval,
        steps=steepest.steps,
        runs=len(by_run),
        growing=growing,
    )


def slope_of(rank: RankResult) -> Slope | None:
    """Return the slope of a rank's memory; None with fewer than 32 readings of memory."""
    readings = rank.learning.memory if rank.learning else ()
    on_gpu = any(reading.device_allocated_bytes for reading in readings)
    known = [
        (reading.step, size) for reading in readings if (size := _size(reading, on_gpu)) is not None
    ]
    if len(known) < MINIMUM_STEPS:
        return None
    later = known[round(LEFT_OUT * len(known)) :]
    floors = floors_of(later)
    total = _slope(floors)
    half = len(floors) // 2
    low = [_slope(part).low for part in (floors, floors[:half], floors[half:])]
    risen = floors[-1][1] - floors[0][1]
    enough = risen > max(LEAST_BYTES, LEAST_FRACTION * floors[0][1])
    grows = enough and all(end is not None and end > 0 for end in low)
    return Slope(total, grows, len(later), "allocated" if on_gpu else "rss")


def floors_of(readings: Sequence[tuple[int, int]]) -> list[tuple[float, float]]:
    """Return the middle step and the minimum bytes of each block of readings.

    Readings are pairs of a step and its bytes, in order of steps.
    """
    ends = [round(number * len(readings) / BLOCKS) for number in range(BLOCKS + 1)]
    blocks = [readings[first:last] for first, last in pairwise(ends)]
    return [
        (fmean(step for step, _ in block), float(min(size for _, size in block)))
        for block in blocks
    ]


def _slope(points: Sequence[tuple[float, float]]) -> Interval:
    """Return the least-squares slope of at least three points, with its 95 % t interval."""
    x0, y0 = fmean(x for x, _ in points), fmean(y for _, y in points)
    square = sum((x - x0) ** 2 for x, _ in points)
    slope = sum((x - x0) * (y - y0) for x, y in points) / square
    rest = sum((y - y0 - slope * (x - x0)) ** 2 for x, y in points)
    freedom = len(points) - 2
    half = t_quantile(freedom, 0.975) * (rest / freedom / square) ** 0.5
    return Interval(median=slope, low=slope - half, high=slope + half)


def _size(reading: MemoryReading, on_gpu: bool) -> int | None:
    return reading.device_allocated_bytes if on_gpu else reading.host_bytes

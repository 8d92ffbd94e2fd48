"""Make the profile of a rank out of its recorded cycles."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from accel_bench_profile.figures.communication import communication_time
from accel_bench_profile.figures.host import host_time
from accel_bench_profile.figures.kernels import (
    foremost,
    fused_kernels,
    kernel_times,
    seconds_by_kind,
)
from accel_bench_profile.figures.spans import Cycle


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

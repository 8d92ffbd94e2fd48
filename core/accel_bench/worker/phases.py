"""Where the time of a step goes: marks between phases, added up step by step."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from accel_bench.engine import PhaseName
from accel_bench.result import PhaseSplit


def split_steps(names: Sequence[PhaseName | None], seconds: Sequence[float]) -> PhaseSplit:
    """Add up what lies between consecutive marks, and take the median over the steps.

    `names[i]` is the phase that the mark after `seconds[i]` ended, None for the end of a step: what
    lies between the last mark of a step and its end belongs to no phase, but to the step.
    """
    steps: list[dict[PhaseName | None, float]] = [{}]
    for name, spent in zip(names, seconds, strict=True):
        steps[-1][name] = steps[-1].get(name, 0.0) + spent
        if name is None:
            steps.append({})
    steps.pop()
    phases = dict.fromkeys(name for name in names if name is not None)
    return PhaseSplit(
        steps=len(steps),
        step_seconds=median(sum(step.values()) for step in steps),
        seconds={name: median(step.get(name, 0.0) for step in steps) for name in phases},
    )

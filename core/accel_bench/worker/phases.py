"""Where the time of a step goes: marks between phases, added up step by step."""

from __future__ import annotations

from collections.abc import Sequence

from accel_bench.engine import PhaseName
from accel_bench.result import PhaseSplit


def split_steps(names: Sequence[PhaseName | None], seconds: Sequence[float]) -> PhaseSplit:
    """Add up what lies between consecutive marks, and take the step of median duration.

    `names[i]` is the phase that the mark after `seconds[i]` ended, None for the end of a step: what
    lies between the last mark of a step and its end belongs to no phase, but to the step. One whole
    step is taken, since medians of the phases need not add up to the median of the steps.
    """
    steps: list[dict[PhaseName | None, float]] = [{}]
    for name, spent in zip(names, seconds, strict=True):
        steps[-1][name] = steps[-1].get(name, 0.0) + spent
        if name is None:
            steps.append({})
    steps.pop()
    steps.sort(key=lambda step: sum(step.values()))
    middle = steps[(len(steps) - 1) // 2]
    return PhaseSplit(
        steps=len(steps),
        step_seconds=sum(middle.values()),
        seconds={name: spent for name, spent in middle.items() if name is not None},
    )

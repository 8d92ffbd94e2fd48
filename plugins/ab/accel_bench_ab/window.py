"""Measured window of an observed command: the end of its warm-up, and its samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median

from accel_bench.result import Sample, Window
from accel_bench.scenario.settings import LONGEST_WARMUP, MAXIMUM_SAMPLES
from accel_bench.worker.stopwatch import PLATEAU_STEPS, is_plateau
from accel_bench_ab.record import Step

SETTLED = 1.5
"""Maximum ratio of a step's time at the end of the warm-up to the median of later steps.

A larger ratio shows a false plateau, as slowly filling caches and late compilation make them.
"""

LEAST_STEPS = 2
"""Minimum number of steps of a window: one for warm-up, and one to measure."""


def step_seconds(steps: Sequence[Step], began: float) -> list[float]:
    """Return the seconds of each step since the end of the previous step.

    The first step begins at `began`, the end of importing torch.
    """
    ends = [began, *(step.ended for step in steps)]
    return [after - before for before, after in pairwise(ends)]


def warmup_of(steps: Sequence[Step], began: float) -> int | None:
    """Return the number of warm-up steps, or None if the pace is not steady yet.

    The rule of `measure.warmup: auto` applies: the medians of the last five steps and of the five
    before differ by less than 1 %, after at most 30 steps. Steps with different numbers of tokens
    are compared per token.
    """
    seconds = paces(steps, step_seconds(steps, began))
    for number in range(2 * PLATEAU_STEPS, min(len(seconds), LONGEST_WARMUP) + 1):
        if number == LONGEST_WARMUP or is_plateau(seconds[:number]):
            return number
    return None


def steps_to_leave_out(steps: Sequence[Step], began: float) -> int:
    """Return the number of warm-up steps among the steps so far; 30 without a steady pace."""
    return settled_after(paces(steps, step_seconds(steps, began)), warmup_of(steps, began))


def settled_after(pace: Sequence[float], plateau: int | None) -> int:
    """Return the number of warm-up steps, at least `plateau`, after which steps stay about as fast.

    `pace` has the seconds of each step. `plateau` is the number of steps until the pace is steady.
    The result is 30, the maximum, if `plateau` is None, or if no smaller number is enough.
    """
    for first in range(plateau or LONGEST_WARMUP, min(LONGEST_WARMUP, len(pace) - 1)):
        before = median(pace[max(0, first - PLATEAU_STEPS) : first])
        if before <= SETTLED * median(pace[first:]):
            return first
    return LONGEST_WARMUP


def paces(steps: Sequence[Step], seconds: Sequence[float]) -> list[float]:
    """Return each step's seconds, scaled to the mean number of real tokens if it is known."""
    if not all(step.real > 0 for step in steps):
        return [*seconds]
    usual = fmean(step.real for step in steps)
    return [value * usual / step.real for value, step in zip(seconds, steps, strict=True)]


def window_of(
    steps: Sequence[Step], began: float, warmup: int | None, most: int, counted: bool
) -> Window | None:
    """Return the window of at most `most` steps (0: all) after the warm-up; None for under 2 steps.

    `began` is the time before the first step. `warmup` is the number of warm-up steps, or None to
    detect it. The warm-up has at most half of the steps, or more if `most` steps follow it. Unless
    tokens are `counted`, each step counts as one element.
    """
    if len(steps) < LEAST_STEPS:
        return None
    seconds = step_seconds(steps, began)
    if warmup is None:
        warmup = steps_to_leave_out(steps, began)
    latest = max(len(steps) // 2, len(steps) - most if most else 0)
    first = max(1, min(warmup, latest))
    last = min(len(steps), MAXIMUM_SAMPLES, first + most if most else len(steps))
    samples = [sample_of(i, seconds[i], steps[i], counted) for i in range(last)]
    return Window(
        started=steps[first - 1].ended,
        ended=steps[last - 1].ended,
        samples=tuple(samples[first:]),
        warmup=tuple(samples[:first]),
    )


def sample_of(number: int, seconds: float, step: Step, counted: bool) -> Sample:
    """Return step `number` as a sample of one sequence, since the command's batches are unknown.

    The sample has the step's tokens if they are `counted`, else one.
    """
    tokens = (step.processed, step.real, step.supervised) if counted else (1, 1, 1)
    return Sample(
        step=number,
        seconds=seconds,
        sequences=1,
        processed_tokens=tokens[0],
        real_tokens=tokens[1],
        supervised_tokens=tokens[2],
        loss=step.loss if math.isfinite(step.loss) else None,
    )

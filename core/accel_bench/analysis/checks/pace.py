"""Were the steps of a window computed within it? They are compared with those before and after."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from accel_bench.result import Sample, Window

MOST_FASTER = 3.0
"""Most times that a window's median step may be as fast as the fastest step around it."""

STEADY_STEPS = 5
"""Warm-up steps after the first that are compared; of fewer each may compile, or record a graph."""


def pace_figures(window: Window, after: Sequence[Sample]) -> Iterator[str]:
    """Yield that a window was too fast for its warm-up, or for the steps after it."""
    warm = window.warmup[1:]
    if len(warm) >= STEADY_STEPS:
        yield from too_fast(window.samples, warm, "of the warm-up")
    if after:
        yield from too_fast(window.samples, after)


def seconds_per_token(sample: Sample) -> float:
    """Return the seconds per processed token: steps of padded batches hold different numbers."""
    return sample.seconds / max(1, sample.processed_tokens)


def too_fast(
    window: Sequence[Sample], others: Sequence[Sample], which: str = "after the window"
) -> Iterator[str]:
    """Yield that the median step was too fast for the fastest of others, by the step and by the
    token."""
    usual = median(sample.seconds for sample in window)
    pace = median(seconds_per_token(sample) for sample in window)
    if min(_times(one, usual, pace) for one in others) > MOST_FASTER:
        fastest = min(one.seconds for one in others)
        yield (
            f"the window's median step took {usual:.3g} s, and the fastest of {len(others)} steps "
            f"{which} {fastest:.3g} s: an engine computes a step before it calls stopwatch.lap"
        )


def _times(sample: Sample, usual: float, pace: float) -> float:
    """Return how many times as long a step took as usual, by the step or the token, the less."""
    ratios = ((sample.seconds, usual), (seconds_per_token(sample), pace))
    return min(seconds / other if other else math.inf for seconds, other in ratios)

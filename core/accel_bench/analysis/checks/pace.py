"""Check that the steps of a window were not much faster than the steps before and after it.

Much faster steps must have been computed outside of the window.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from accel_bench.result import Sample, Window

MOST_FASTER = 3.0
"""Largest allowed ratio of the fastest step around a window to the window's median step."""

STEADY_STEPS = 5
"""Minimum number of warm-up steps for the check, without the first; few steps may all compile."""


def pace_figures(window: Window, after: Sequence[Sample]) -> Iterator[str]:
    """Yield a message if a window is too fast compared with its warm-up or the steps `after` it."""
    warm = window.warmup[1:]
    if len(warm) >= STEADY_STEPS:
        yield from too_fast(window.samples, warm, "of the warm-up")
    if after:
        yield from too_fast(window.samples, after)


def seconds_per_token(sample: Sample) -> float:
    """Return the seconds per processed token, since steps of padded batches differ in tokens."""
    return sample.seconds / max(1, sample.processed_tokens)


def too_fast(
    window: Sequence[Sample], others: Sequence[Sample], which: str = "after the window"
) -> Iterator[str]:
    """Yield a message if the window's median step was much faster than the fastest of `others`,
    per step and per token; `which` names `others` in the message."""
    usual = median(sample.seconds for sample in window)
    pace = median(seconds_per_token(sample) for sample in window)
    if min(_smaller_ratio(sample, usual, pace) for sample in others) > MOST_FASTER:
        fastest = min(sample.seconds for sample in others)
        yield (
            f"the window's median step took {usual:.3g} s, and the fastest of {len(others)} steps "
            f"{which} {fastest:.3g} s: an engine computes a step before it calls stopwatch.lap"
        )


def _smaller_ratio(sample: Sample, usual: float, pace: float) -> float:
    ratios = ((sample.seconds, usual), (seconds_per_token(sample), pace))
    return min(seconds / other if other else math.inf for seconds, other in ratios)

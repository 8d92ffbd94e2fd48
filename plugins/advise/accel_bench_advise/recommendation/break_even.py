"""Break-even of a stack: the step from which its longer start has paid off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, variance

from accel_bench.analysis.statistics.estimators import t_bound, t_quantile
from accel_bench.analysis.statistics.verdict import Finding
from accel_bench.analysis.wording import finding_words
from accel_bench_advise.recommendation.schema import BreakEven

ADVICE = finding_words("use it", "leave it off", "too near to tell")
"""Advice to use a stack or not, by the verdict on paying off."""


def fieller_ends(extra: Sequence[float], saved: Sequence[float]) -> tuple[float | None, ...]:
    """Return both ends of the 95 % interval of mean(extra) / mean(saved), of paired values.

    Both are None if the mean of `saved` is not surely positive, or for fewer than two pairs.
    Source: Fieller (1954), "Some problems in interval estimation".
    """
    size = len(extra)
    if size < 2:
        return None, None
    paid, gained = fmean(extra), fmean(saved)
    critical = t_quantile(size - 1, 0.975) ** 2 / size
    together = sum((a - paid) * (b - gained) for a, b in zip(extra, saved, strict=True))
    square = gained**2 - critical * variance(saved)
    linear = paid * gained - critical * together / (size - 1)
    constant = paid**2 - critical * variance(extra)
    if square <= 0 or gained <= 0:
        return None, None
    root = math.sqrt(max(0.0, linear**2 - square * constant))
    return max(0.0, (linear - root) / square), max(0.0, (linear + root) / square)


def mean_ends(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of a mean; infinite with fewer than two values."""
    if len(values) < 2:
        return -math.inf, math.inf
    half = t_bound(values, 0.975)
    return fmean(values) - half, fmean(values) + half


def break_even(
    names: tuple[str, str],
    extra: Sequence[float],
    saved: Sequence[float],
    job_steps: float | None,
) -> BreakEven:
    """Return from which step a stack is ahead of another, and whether a job has that many steps.

    `names` are the names of both stacks. `extra` are additional seconds before the first step, and
    `saved` seconds saved per step, both paired by round. `job_steps` is the number of steps of the
    job; None if unknown.
    """
    paid, gained, never = fmean(extra), fmean(saved), mean_ends(saved)[1] <= 0
    low, high = fieller_ends(extra, saved)
    steps = 0.0 if paid <= 0 <= gained else paid / gained if gained > 0 else None
    pays: Finding | None = None
    if job_steps and steps is None:
        pays = "does not hold" if never else "inconclusive"
    elif job_steps:
        pays = "does not hold" if low is not None and job_steps < low else "inconclusive"
        pays = "holds" if high is not None and job_steps > high else pays
    document = BreakEven(
        against=names[1],
        extra_seconds=paid,
        saved_seconds_per_step=gained,
        steps=steps,
        low=low,
        high=high,
        job_steps=job_steps,
        pays=pays,
    )
    return document.model_copy(update={"sentence": _sentence(names[0], document, never)})


def _sentence(name: str, found: BreakEven, never: bool) -> str:
    """Return a sentence: `compiled pays after 203 steps [190, 218] ...: leave it off`.

    `name` is the stack that `found` is about. `never` is true if its steps surely save no time.
    """
    if found.steps is None and never:
        return f"{name} never pays against {found.against}: it takes longer to start and each step"
    if found.steps is None:
        return (
            f"whether {name} ever pays against {found.against} cannot be told: its steps may be "
            "faster or slower; more rounds are needed"
        )
    start = f"{name} pays after {found.steps:,.0f} steps"
    if found.low is not None and found.high is not None:
        start += f" [{found.low:,.0f}, {found.high:,.0f}]"
    else:
        start += " (the interval has no end: more rounds are needed)"
    start += (
        f": it takes {found.extra_seconds:.1f} s longer to start than {found.against}, and saves "
        f"{found.saved_seconds_per_step * 1000:.3g} ms a step"
    )
    if found.job_steps is None or found.pays is None:
        return start
    return f"{start}; your job has {found.job_steps:,.0f}: {ADVICE[found.pays]}"

"""After how many steps does a stack that takes longer to start pay?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, variance
from typing import NamedTuple

from accel_bench.analysis.statistics.estimators import t_bound, t_quantile
from accel_bench_advise.recommendation.schema import Answer, BreakEven


class Steps(NamedTuple):
    """Steps after which a cost is won back, with a 95 % interval."""

    steps: float | None
    low: float | None
    high: float | None


def steps_to_pay(extra: Sequence[float], saved: Sequence[float]) -> Steps:
    """Return mean(extra) / mean(saved) of pairs, one for each round, with Fieller's interval.

    `extra` are seconds that are paid once, `saved` those that a step saves. None where it never
    pays, and for an end that is not known. Source: Fieller (1954), "Some problems in interval
    estimation".
    """
    paid, gained = fmean(extra), fmean(saved)
    if paid <= 0 <= gained:
        return Steps(0.0, *_ends(extra, saved))
    return Steps(paid / gained if gained > 0 else None, *_ends(extra, saved))


def mean_ends(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of a mean; infinite with fewer than two values."""
    if len(values) < 2:
        return -math.inf, math.inf
    half = t_bound(values, 0.975)
    return fmean(values) - half, fmean(values) + half


def _ends(extra: Sequence[float], saved: Sequence[float]) -> tuple[float | None, float | None]:
    """Return both ends of Fieller's interval; a high one only where a step surely saves."""
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


def break_even(
    names: tuple[str, str],
    extra: Sequence[float],
    saved: Sequence[float],
    job_steps: float | None,
) -> BreakEven:
    """Return when a stack pays against another one, and whether it does in a job.

    `names` are the stack's and that of the other one.
    """
    found, never = steps_to_pay(extra, saved), mean_ends(saved)[1] <= 0
    document = BreakEven(
        against=names[1],
        extra_seconds=fmean(extra),
        saved_seconds_per_step=fmean(saved),
        steps=found.steps,
        low=found.low,
        high=found.high,
        job_steps=job_steps,
        pays=_pays(found, never, job_steps) if job_steps else None,
    )
    return document.model_copy(update={"sentence": _sentence(names[0], document, never)})


def _pays(found: Steps, never: bool, job_steps: float) -> Answer:
    if found.steps is None:
        return "no" if never else "perhaps"
    if found.high is not None and job_steps > found.high:
        return "yes"
    return "no" if found.low is not None and job_steps < found.low else "perhaps"


def _sentence(name: str, found: BreakEven, never: bool) -> str:
    """Return `compiled pays after 203 steps [190, 218]; your job has 180: leave it off`."""
    if found.steps is None and not never:
        return (
            f"whether {name} ever pays against {found.against} cannot be told: its steps may be "
            "faster or slower; more rounds are needed"
        )
    if found.steps is None:
        return f"{name} never pays against {found.against}: it takes longer to start and each step"
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
    does = {
        "yes": "use it",
        "no": "leave it off",
        "perhaps": "too near to tell",
    }[found.pays]
    return f"{start}; your job has {found.job_steps:,.0f}: {does}"

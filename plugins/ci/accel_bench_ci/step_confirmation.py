"""Confirmation of the newest step of a history by runs in fresh processes.

New runs of the stack and its baseline are compared with the sessions before the step. Ratios to the
baseline are compared if earlier sessions have both stacks, so that a slower machine confirms
nothing. Otherwise absolute values are compared. Since values scatter from session to session, a
prediction bound for one new session is used, not a comparison of two means. The bound follows from
Student's t and the earlier sessions' robust spread, or their standard deviation if they are few.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median, stdev
from typing import Literal

from accel_bench.analysis.schema import Document
from accel_bench.analysis.statistics.estimators import standard_error, t_quantile
from accel_bench.analysis.statistics.verdict import ONE_SIDED_ALPHA, PRACTICAL_FLOOR, RoundKey
from accel_bench.analysis.wording import join_names, label, percent
from accel_bench.documents.base import JsonValue
from accel_bench_ci.figures import change_of
from accel_bench_ci.series import History, HistoryRun, HistoryStep
from accel_bench_ci.steps import MAD_TO_SIGMA, SHORTEST_SIDE

FEWEST_FOR_ROBUST = 20
"""Minimum number of sessions for the use of the robust spread."""

MAD_EFFICIENCY = 0.37
"""Degrees of freedom of the median absolute deviation, relative to the standard deviation's.

Source: Rousseeuw and Croux (1993), "Alternatives to the Median Absolute Deviation". Together with
the factor n / (n - 0.8) for small samples, this value keeps the error rate.
"""


class Confirmation(Document):
    """Verdict on the newest step of a history, by new runs of the stack."""

    scenario: str
    stack: str
    sweep: dict[str, JsonValue]
    figure: str
    step: HistoryStep

    confirmed: bool
    """True if the new runs are significantly worse than the sessions before the step.

    The new runs must also be nearer to the sessions since the step than to the sessions before it.
    """

    basis: Literal["own values", "ratio to the baseline"]
    """Compared quantity: the ratio to the baseline, or the figure itself."""

    relative_change: float | None
    """New value divided by the earlier value, minus 1; null if no new run completed."""

    bound: float | None
    """Least relative change that confirms the step.

    The bound is the prediction bound or half of the step, whichever is larger.
    """

    rounds: int
    """Number of new rounds."""

    sessions_before: int
    """Number of sessions between the previous step and the newest step."""

    error_rate: float
    """Maximum probability that unchanged code confirms a step."""

    run_ids: tuple[str, ...]
    """Ids of the new runs."""

    conclusion: str
    """Verdict in a sentence."""


def confirm_step(
    history: History,
    fresh: Sequence[HistoryRun],
    baseline: History | None = None,
    fresh_baseline: Sequence[HistoryRun] = (),
) -> Confirmation:
    """Return the verdict of new runs `fresh` of a stack on the newest step of its history.

    The new runs are compared with the sessions before the step. `baseline` is the baseline's
    history at the same sweep point. `fresh_baseline` are the baseline's new runs in the same
    rounds.
    """
    step = history.newest_step
    assert step is not None
    own, other = _logs(fresh), _logs(fresh_baseline)
    before, since = _sides(history, step, _base(history, baseline))
    new = [own[key] - other[key] for key in sorted(own.keys() & other.keys())]
    paired = min(len(before), len(new)) >= SHORTEST_SIDE
    if not paired:
        before, since = _sides(history, step, {point.session: 1.0 for point in history.points})
        new = list(own.values())
    change, bound = judge_new_runs(before, new)
    half = abs(median(since) - median(before)) / 2 if before and since else 0.0
    mostly = bound is not None and half > bound
    bound = half if mostly else bound
    worse = change is not None and step.change == change_of(history.tracked, change)
    confirmed = worse and change is not None and bound is not None and abs(change) > bound
    return Confirmation(
        scenario=history.scenario,
        stack=history.stack,
        sweep=history.sweep,
        figure=history.figure,
        step=step,
        confirmed=confirmed,
        basis="ratio to the baseline" if paired else "own values",
        relative_change=None if change is None else math.expm1(change),
        bound=None if bound is None else math.expm1(bound),
        rounds=len(new),
        sessions_before=len(before),
        error_rate=ONE_SIDED_ALPHA,
        run_ids=tuple(run.result.run_id for run in fresh if run.value is not None),
        conclusion=f"the step at session {step.session} of {history.figure} is "
        f"{'' if confirmed else 'not '}confirmed: {_reason(change, bound, paired, mostly)}",
    )


def other_series_notice(history: History) -> str:
    """Return a sentence saying that new runs on this machine do not continue a history's series."""
    where = join_names(history.devices) or "no device"
    return (
        f"the step of {history.figure} of {label(history)} on {where} is not "
        f"confirmed: new runs here are of other work or on another machine than series "
        f"{history.series}"
    )


def judge_new_runs(
    before: Sequence[float], new: Sequence[float]
) -> tuple[float | None, float | None]:
    """Return log(new / earlier value), and the bound above which its absolute value is significant.

    The arguments are logarithms of values: one per earlier session, one per new run. The log-ratio
    is None if either list is empty, and the bound is None if either is too short.
    """
    if len(before) < SHORTEST_SIDE or len(new) < 2:
        return (fmean(new) - median(before) if before and new else None), None
    middle, spread, freedom = _middle_spread_and_degrees(before)
    error = math.hypot(spread * math.sqrt(1 + 1 / len(before)), standard_error(new))
    degrees = min(freedom, len(new) - 1)
    sure = t_quantile(degrees, 1 - ONE_SIDED_ALPHA) * error
    return fmean(new) - middle, max(sure, math.log1p(PRACTICAL_FLOOR))


def _middle_spread_and_degrees(before: Sequence[float]) -> tuple[float, float, float]:
    """Return the center of values, their standard deviation and its degrees of freedom.

    Mean and standard deviation are replaced by robust estimates from 20 values on.
    """
    size = len(before)
    if size < FEWEST_FOR_ROBUST:
        return fmean(before), stdev(before), size - 1
    middle = median(before)
    spread = MAD_TO_SIGMA * median(abs(value - middle) for value in before)
    return middle, spread * size / (size - 0.8), MAD_EFFICIENCY * (size - 1)


def _logs(runs: Sequence[HistoryRun]) -> dict[RoundKey, float]:
    return {
        (run.result.session, run.result.round): math.log(run.value)
        for run in runs
        if run.value is not None and run.value > 0
    }


def _base(history: History, baseline: History | None) -> dict[str, float]:
    """Return the median of the figure in the baseline's runs of each session, by session id.

    The dict is empty if there is no baseline, or if `history` is the baseline's own.
    """
    if baseline is None or (baseline.stack, baseline.sweep) == (history.stack, history.sweep):
        return {}
    return {point.session: point.value.median for point in baseline.points if point.value}


def _sides(
    history: History, step: HistoryStep, base: Mapping[str, float]
) -> tuple[list[float], list[float]]:
    """Return log(value / divisor) of a history's sessions, before and since its newest step.

    `base` has the divisors by session id; sessions without a positive divisor are skipped. The
    first list begins at the previous step.
    """
    start = history.steps[-2].point if len(history.steps) > 1 else 0
    before, since = (
        [
            math.log(point.value.median / base[point.session])
            for point in points
            if point.value and base.get(point.session, 0.0) > 0
        ]
        for points in (history.points[start : step.point], history.points[step.point :])
    )
    return before, since


def _reason(change: float | None, bound: float | None, paired: bool, half: bool) -> str:
    """Return a sentence with the reason for a confirmation's verdict.

    `change` and `bound` are log-ratios. `paired` is True for ratios to the baseline, and `half` if
    the bound is half of the step.
    """
    if change is None or bound is None:
        return "too few new runs, or sessions before it, to judge"
    basis = ", as a ratio to the baseline," if paired else ""
    change_text = f"new runs{basis} are {percent(math.expm1(change))} from the sessions before it"
    if half:
        return f"{change_text}; half of the step is {percent(math.expm1(bound))}"
    rate = f"at an error rate of {percent(ONE_SIDED_ALPHA)}"
    return f"{change_text}; sure is {percent(math.expm1(bound))}, {rate}"

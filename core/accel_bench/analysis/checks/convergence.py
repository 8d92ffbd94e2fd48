"""Did a stack train the same thing? Its loss curve held against the baseline's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Literal, NamedTuple, TypeAlias

from accel_bench.analysis.metrics.throughput import RunThroughput, run_throughput
from accel_bench.analysis.statistics.verdict import RoundKey
from accel_bench.analysis.wording import percent
from accel_bench.documents.base import Frozen
from accel_bench.result import Result
from accel_bench.scenario.models import Scenario

LossWord: TypeAlias = Literal["equivalent", "different", "not tested"]
"""What may be said about a stack's loss."""

SMOOTHING_STEPS = 5
"""Steps of the centred moving mean; fewer at the ends of the curve."""

SAME_DTYPE_TOLERANCE = 1e-3
"""Relative distance allowed where no plugin declares one and both compute in the same dtype."""

OTHER_DTYPE_TOLERANCE = 2e-2
"""Relative distance allowed where no plugin declares one and the dtypes differ."""


class LossVerdict(Frozen):
    """A stack's loss curve against the baseline's."""

    verdict: LossWord
    """What may be said."""

    largest_difference: float | None = None
    """Largest relative difference of the smoothed curves, over steps and rounds; 0.01 is 1 %."""

    tolerance: float | None = None
    """What was allowed; null where nothing was compared."""

    reason: str = ""
    """Why the verdict is not `equivalent`."""


class _Pair(NamedTuple):
    """The same round of the baseline and of the stack."""

    baseline: RunThroughput
    stack: RunThroughput


def compare_losses(
    baseline: Mapping[RoundKey, Result], stack: Mapping[RoundKey, Result]
) -> LossVerdict:
    """Compare the loss curves of completed runs with the same key; the worst pair counts."""
    keys = sorted(set(baseline) & set(stack))
    pairs = [pair for key in keys if (pair := _pair(baseline[key], stack[key]))]
    if not pairs:
        return LossVerdict(verdict="not tested", reason="no round in which both completed")
    tolerance = loss_tolerance(
        [stack[key].loss_tolerance for key in keys],
        baseline[keys[0]].experiment.scenario,
        stack[keys[0]].experiment.scenario,
    )
    verdicts = [_compare_pair(pair, tolerance) for pair in pairs]
    return max(verdicts, key=_severity)


def loss_tolerance(declared: Sequence[float | None], baseline: Scenario, stack: Scenario) -> float:
    """The largest declared tolerance, else one for equal and one for different dtypes."""
    given = [tolerance for tolerance in declared if tolerance is not None]
    if given:
        return max(given)
    same = (baseline.model.dtype, baseline.train.precision) == (
        stack.model.dtype,
        stack.train.precision,
    )
    return SAME_DTYPE_TOLERANCE if same else OTHER_DTYPE_TOLERANCE


def largest_difference(baseline: Sequence[float], stack: Sequence[float]) -> float:
    """Largest relative difference of two smoothed curves of equal length; infinite against a 0."""
    smooth = zip(smoothed(baseline), smoothed(stack), strict=True)
    return max(_relative(before, after) for before, after in smooth)


def smoothed(losses: Sequence[float]) -> list[float]:
    """Centred moving mean of 5 steps; at the ends, of those steps of the 5 that there are."""
    reach = SMOOTHING_STEPS // 2
    return [fmean(losses[max(0, i - reach) : i + reach + 1]) for i in range(len(losses))]


def _pair(baseline: Result, stack: Result) -> _Pair | None:
    """Both runs' numbers, or None where one did not complete or has none."""
    if not (baseline.status.completed and stack.status.completed):
        return None
    before, after = run_throughput(baseline), run_throughput(stack)
    return _Pair(before, after) if before and after else None


def _compare_pair(pair: _Pair, tolerance: float) -> LossVerdict:
    """Compare one round's curves over the steps that both took."""
    steps = min(len(pair.baseline.losses), len(pair.stack.losses))
    if pair.baseline.step_tokens[:steps] != pair.stack.step_tokens[:steps]:
        return LossVerdict(verdict="not tested", reason="steps hold different numbers of tokens")
    before, after = finite(pair.baseline.losses[:steps]), finite(pair.stack.losses[:steps])
    if len(before) < steps:
        reason = f"the baseline's loss of step {len(before)} is missing or not finite"
        return LossVerdict(verdict="not tested", reason=reason)
    if len(after) < steps:
        reason = f"the loss of step {len(after)} is missing or not finite"
        return LossVerdict(verdict="different", tolerance=tolerance, reason=reason)
    return _against_tolerance(largest_difference(before, after), tolerance)


def _against_tolerance(difference: float, tolerance: float) -> LossVerdict:
    """Judge a difference of finite curves."""
    if difference <= tolerance:
        return LossVerdict(verdict="equivalent", largest_difference=difference, tolerance=tolerance)
    return LossVerdict(
        verdict="different",
        largest_difference=difference if math.isfinite(difference) else None,
        tolerance=tolerance,
        reason=f"by up to {percent(difference)}, {percent(tolerance)} allowed",
    )


def finite(losses: Sequence[float | None]) -> list[float]:
    """The losses before the first one that is missing or not finite."""
    found: list[float] = []
    for loss in losses:
        if loss is None or not math.isfinite(loss):
            break
        found.append(loss)
    return found


def _relative(before: float, after: float) -> float:
    """Distance as a share of the baseline's value."""
    if before == after:
        return 0.0
    return abs(after - before) / abs(before) if before else math.inf


def _severity(verdict: LossVerdict) -> tuple[int, float]:
    """Order verdicts from harmless to bad: one bad pair spoils the stack."""
    places: dict[LossWord, int] = {"equivalent": 0, "not tested": 1, "different": 2}
    difference = verdict.largest_difference
    return places[verdict.verdict], math.inf if difference is None else difference

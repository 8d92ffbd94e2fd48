"""Did a stack train the same thing? Its loss curve compared with the baseline's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile
from statistics import fmean
from typing import Literal, TypeAlias

from accel_bench.analysis.metrics.throughput import RunThroughput, run_throughput
from accel_bench.analysis.statistics.verdict import RoundKey
from accel_bench.analysis.wording import percent
from accel_bench.documents.base import Frozen
from accel_bench.result import Result
from accel_bench.scenario.models import Scenario

LossWord: TypeAlias = Literal["equivalent", "different", "not tested"]
"""Verdicts on a stack's loss."""

SMOOTHING_STEPS = 5
"""Steps of the centred moving mean; fewer at the ends of the curve."""

SAME_DTYPE_TOLERANCE = 1e-3
"""Relative distance allowed where no plugin declares one and both compute in the same dtype."""

OTHER_DTYPE_TOLERANCE = 2e-2
"""Relative distance allowed where no plugin declares one and the dtypes differ."""


class LossComparison(Frozen):
    """A stack's loss curve against the baseline's, or that of B against that of A."""

    loss_verdict: LossWord = "not tested"
    """Whether the two curves are the same."""

    loss_difference: float | None = None
    """Largest relative difference of the smoothed curves, over steps and rounds; 0.01 is 1 %."""

    loss_tolerance: float | None = None
    """What is allowed, by the plugins of the stack; null where nothing was compared."""

    loss_reason: str = ""
    """Why the verdict is not `equivalent`."""


def compare_losses(
    baseline: Mapping[RoundKey, Result], stack: Mapping[RoundKey, Result]
) -> LossComparison:
    """Compare the loss curves of completed runs with the same key; the worst round counts."""
    keys = sorted(set(baseline) & set(stack))
    speeds = [(_completed_throughput(baseline[k]), _completed_throughput(stack[k])) for k in keys]
    pairs = [(before, after) for before, after in speeds if before and after]
    if not pairs:
        return LossComparison(loss_reason="no round in which both completed")
    tolerance = loss_tolerance(
        [stack[key].loss_tolerance for key in keys],
        baseline[keys[0]].experiment.scenario,
        stack[keys[0]].experiment.scenario,
    )
    return max((_compare_round(*pair, tolerance) for pair in pairs), key=_severity)


def loss_tolerance(declared: Sequence[float | None], baseline: Scenario, stack: Scenario) -> float:
    """Return the largest declared tolerance, else one for equal and one for different dtypes."""
    given = [tolerance for tolerance in declared if tolerance is not None]
    if given:
        return max(given)
    same = (baseline.model.dtype, baseline.train.precision) == (
        stack.model.dtype,
        stack.train.precision,
    )
    return SAME_DTYPE_TOLERANCE if same else OTHER_DTYPE_TOLERANCE


def largest_difference(baseline: Sequence[float], stack: Sequence[float]) -> float:
    """Return the largest relative difference of two smoothed curves of equal length.

    It is infinite against a 0.
    """
    smooth = zip(smoothed(baseline), smoothed(stack), strict=True)
    return max(_relative(before, after) for before, after in smooth)


def smoothed(losses: Sequence[float]) -> list[float]:
    """Return the centred moving mean of 5 steps; at the ends, of those of the 5 that there are."""
    reach = SMOOTHING_STEPS // 2
    return [fmean(losses[max(0, i - reach) : i + reach + 1]) for i in range(len(losses))]


def finite(losses: Sequence[float | None]) -> list[float]:
    """Return the losses before the first one that is missing or not finite."""
    return list(takewhile(math.isfinite, (math.nan if x is None else x for x in losses)))


def _completed_throughput(run: Result) -> RunThroughput | None:
    return run_throughput(run) if run.status.completed else None


def _compare_round(
    baseline: RunThroughput, stack: RunThroughput, tolerance: float
) -> LossComparison:
    """Compare one round's curves over the steps that both took."""
    steps = min(len(baseline.losses), len(stack.losses))
    if baseline.step_tokens[:steps] != stack.step_tokens[:steps]:
        return LossComparison(loss_reason="steps hold different numbers of tokens")
    before, after = finite(baseline.losses[:steps]), finite(stack.losses[:steps])
    if len(before) < steps:
        reason = f"the baseline's loss of step {len(before)} is missing or not finite"
        return LossComparison(loss_reason=reason)
    difference, reason = math.inf, f"the loss of step {len(after)} is missing or not finite"
    if len(after) == steps:
        difference = largest_difference(before, after)
        reason = f"by up to {percent(difference)}, {percent(tolerance)} allowed"
    equivalent = difference <= tolerance
    return LossComparison(
        loss_verdict="equivalent" if equivalent else "different",
        loss_difference=difference if math.isfinite(difference) else None,
        loss_tolerance=tolerance,
        loss_reason="" if equivalent else reason,
    )


def _relative(before: float, after: float) -> float:
    if before == after:
        return 0.0
    return abs(after - before) / abs(before) if before else math.inf


def _severity(loss: LossComparison) -> tuple[int, float]:
    """Order verdicts from harmless to bad: one bad round spoils the stack."""
    places: dict[LossWord, int] = {"equivalent": 0, "not tested": 1, "different": 2}
    difference = loss.loss_difference
    return places[loss.loss_verdict], math.inf if difference is None else difference

"""Convergence: a stack's loss curve compared with the baseline's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from statistics import fmean, linear_regression
from typing import NamedTuple

from accel_bench.analysis.checks.allowance import Allowance, allowance, allowed_words
from accel_bench.analysis.checks.verdict_rules import Pair, explanation
from accel_bench.analysis.metrics.throughput import RunThroughput, run_throughput
from accel_bench.analysis.statistics.estimators import t_quantile
from accel_bench.analysis.statistics.verdict import RoundKey, Training
from accel_bench.analysis.wording import percent, training_word
from accel_bench.documents.base import Frozen
from accel_bench.result import Result

SMOOTHING_STEPS = 5
"""Width in steps of the centered moving mean, which is narrower at the ends of a curve."""

MINIMUM_STEPS = 3
"""Minimum number of steps for a fitted line and its residuals."""

POWER = 0.80
"""Statistical power at which a movement or a difference counts as detectable."""


class LossComparison(Frozen):
    """Comparison of a stack's loss curve with the baseline's, or of B's with A's."""

    loss_verdict: Training = "not tested"
    """Verdict on the two loss curves."""

    loss_difference: float | None = None
    """Largest relative difference of the smoothed curves, over steps and rounds; 0.01 is 1 %."""

    loss_tolerance: float | None = None
    """Allowed relative difference; null if nothing was compared."""

    loss_tolerance_by: tuple[str, ...] = ()
    """Plugins that declare the tolerance and that only one side uses; empty for the usual one."""

    loss_excused: bool = False
    """True if only a plugin's declaration excuses a difference above the usual tolerance."""

    loss_movement: float | None = None
    """Relative change of the baseline's loss from the first step to the last."""

    loss_detectable_movement: float | None = None
    """Movement beyond the tolerance that would be seen in 80 % of cases; null for too few steps."""

    loss_reason: str = ""
    """Reason for a verdict other than `equivalent`."""

    @property
    def loss_word(self) -> str:
        """Verdict on the loss in words, such as `within what NAME declares`."""
        return training_word(self.loss_verdict, self.loss_tolerance_by)

    @property
    def loss_allowance(self) -> str:
        """Text on the declared tolerance that allows the verdict `equivalent`; else empty."""
        if self.loss_verdict != "equivalent" or not self.loss_tolerance_by:
            return ""
        allowed = allowed_words(self.loss_tolerance or 0.0, self.loss_tolerance_by)
        return f"by up to {percent(self.loss_difference or 0.0)}, {allowed}"


class Movement(NamedTuple):
    """Change of a loss curve from its first step to its last, relative to its mean."""

    size: float
    """Absolute relative change; 0 for a curve with mean 0."""

    at_least: float
    """Lower end of the 95 % interval of the change; 0 if noise alone could explain it."""

    detectable: float
    """Change beyond a tolerance that would be seen in 80 % of cases."""


def movement(losses: Sequence[float]) -> Movement:
    """Return the movement of a curve of finite losses, by a fitted line.

    The movement is the line's change from the first step to the last. The standard error of the
    slope gives its 95 % t interval. Two steps show no movement. The field `detectable` is the
    smallest movement that is seen in 80 % of cases.
    """
    if len(losses) < MINIMUM_STEPS:
        return Movement(0.0, 0.0, math.inf)
    steps = range(len(losses))
    slope, start = linear_regression(steps, losses)
    free = len(losses) - 2
    squares = sum(
        (loss - start - slope * step) ** 2 for step, loss in zip(steps, losses, strict=True)
    )
    around = len(losses) * (len(losses) ** 2 - 1) / 12  # squares of the steps about their mean
    error = math.sqrt(squares / free / around)
    scale = steps[-1] / (abs(fmean(losses)) or math.inf)
    surely = t_quantile(free, 0.975)
    return Movement(
        size=abs(slope) * scale,
        at_least=max(0.0, abs(slope) - surely * error) * scale,
        detectable=(surely + t_quantile(free, POWER)) * error * scale,
    )


def compare_losses(
    baseline: Mapping[RoundKey, Result], stack: Mapping[RoundKey, Result]
) -> LossComparison:
    """Compare the loss curves of two stacks in each round, and return the worst comparison."""
    keys = sorted(set(baseline) & set(stack))
    speeds = [(_completed_throughput(baseline[k]), _completed_throughput(stack[k])) for k in keys]
    known = [before for before, _ in speeds if before]
    pairs = [
        (_extended(before, known), after, (baseline[key], stack[key]))
        for key, (before, after) in zip(keys, speeds, strict=True)
        if before and after
    ]
    if not pairs:
        return LossComparison(loss_reason="no round in which both completed")
    allowed = allowance("loss", (baseline[keys[0]], stack[keys[0]]))
    return max((_compare_round(*pair, allowed) for pair in pairs), key=_severity)


def largest_difference(baseline: Sequence[float], stack: Sequence[float]) -> float:
    """Return the largest relative difference of two smoothed curves of equal length. It is infinite
    if only the baseline's value is 0."""
    smooth = zip(smoothed(baseline), smoothed(stack), strict=True)
    return max(_relative(before, after) for before, after in smooth)


def smoothed(losses: Sequence[float]) -> list[float]:
    """Return the centered moving mean over 5 steps, or over fewer at the ends."""
    reach = SMOOTHING_STEPS // 2
    return [fmean(losses[max(0, i - reach) : i + reach + 1]) for i in range(len(losses))]


def finite(losses: Sequence[float | None]) -> list[float]:
    """Return the losses before the first loss that is missing or not finite."""
    return list(takewhile(math.isfinite, (math.nan if x is None else x for x in losses)))


def _completed_throughput(run: Result) -> RunThroughput | None:
    return run_throughput(run) if run.status.completed else None


def _extended(run: RunThroughput, others: Sequence[RunThroughput]) -> RunThroughput:
    """Return `run` with losses and tokens of later steps, taken from the longest of `others`."""
    own, longest = len(run.losses), max(others, key=lambda other: len(other.losses))
    return replace(
        run,
        losses=(*run.losses, *longest.losses[own:]),
        step_tokens=(*run.step_tokens, *longest.step_tokens[own:]),
    )


def _compare_round(
    baseline: RunThroughput, stack: RunThroughput, pair: Pair, allowed: Allowance
) -> LossComparison:
    """Compare the losses of a `pair` of runs over common steps, by the tolerance `allowed`."""
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
        reason = f"by up to {percent(difference)}, {allowed.words}"
    moved = movement(before)
    # What needs no excuse is judged by the usual tolerance, whatever is declared.
    excused = difference > allowed.usual
    tolerance = allowed.tolerance if excused else min(allowed.tolerance, allowed.usual)
    verdict = allowed.verdict(difference)
    may_be_excused = allowed.excuses(difference)
    if (verdict == "equivalent" or may_be_excused) and moved.at_least <= tolerance:
        # A stack that does not train at all would be as near.
        verdict = "inconclusive"
    far = verdict == "different"
    if explained := explanation("explained loss", difference, pair) if far else "":
        verdict = "inconclusive"
    if verdict == "equivalent" and before == after:
        verdict = "bitwise equal"
    why: dict[Training, str] = {
        "bitwise equal": "",
        "equivalent": "",
        "inconclusive": f"{reason}; {explained}" if explained else _hardly_moved(moved, tolerance),
        "different": reason,
        "different by design": "; ".join(filter(None, (reason, allowed.by_design))),
    }
    detectable = tolerance + moved.detectable
    return LossComparison(
        loss_verdict=verdict,
        loss_difference=difference if math.isfinite(difference) else None,
        loss_tolerance=allowed.tolerance,
        loss_tolerance_by=allowed.plugins,
        loss_excused=may_be_excused and verdict == "different by design",
        loss_movement=moved.size,
        loss_detectable_movement=detectable if math.isfinite(detectable) else None,
        loss_reason=why[verdict],
    )


def _hardly_moved(moved: Movement, tolerance: float) -> str:
    """Return the reason why a small distance is inconclusive: the loss itself hardly changed."""
    if math.isinf(moved.detectable):
        return f"it takes {MINIMUM_STEPS} steps or more to see whether the loss moves"
    seen = f"the loss moved by {percent(moved.size)} in all"
    if moved.size > tolerance:
        shown = percent(tolerance + moved.detectable)
        seen += f", within the noise between its batches ({shown} would be seen)"
    return f"{seen}, and {percent(tolerance)} is allowed"


def _relative(before: float, after: float) -> float:
    if before == after:
        return 0.0
    return abs(after - before) / abs(before) if before else math.inf


def _severity(loss: LossComparison) -> tuple[int, float]:
    """Return a sort key that puts the worst verdict last."""
    order = (
        *("bitwise equal", "equivalent", "inconclusive", "not tested"),
        *("different by design", "different"),
    )
    difference = loss.loss_difference
    return order.index(loss.loss_verdict), math.inf if difference is None else difference

"""Two stored experiments side by side: a verdict where they are pairs, else history."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, variance
from typing import TypeVar

from accel_bench.analysis.aggregate import (
    ExperimentRuns,
    beside_baseline,
    collect_runs,
    loss_ends,
    peak_memory,
    shared_steps,
    step_seconds,
)
from accel_bench.analysis.checks.comparability import Comparability, Difference, comparability
from accel_bench.analysis.checks.convergence import LossVerdict, LossWord, compare_losses
from accel_bench.analysis.schema import LossEnds, PlannedSummary, StepSeconds
from accel_bench.analysis.statistics.estimators import Interval, t_quantile
from accel_bench.analysis.statistics.verdict import Comparison, RoundKey, Verdict, compare
from accel_bench.analysis.summary import differs
from accel_bench.analysis.wording import join_names
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.result import Result, Status
from accel_bench.scenario.experiment import SCHEMA_VERSION

Value = TypeVar("Value")

HISTORY = "no round of one session holds both: a stored reference is history, not a gate"
"""Why there is no verdict on runs that are no pairs."""


class Operand(Frozen):
    """One of the two. Null where there is no completed run, never 0."""

    experiment_id: str
    """Identity of the experiment."""

    scenario: str
    """Name of the scenario."""

    stack: str
    """Name of the stack."""

    sweep: dict[str, JsonValue]
    """Values of the swept keys."""

    sessions: tuple[str, ...]
    """Sessions in which it ran, oldest first."""

    hosts: tuple[str, ...]
    """Machines on which it ran."""

    status: Status
    """How it ended."""

    reasons: tuple[str, ...]
    """Why the status is not `ok`."""

    runs: int
    """Completed runs: those that the numbers come from."""

    tokens_per_second: Interval | None
    """Real tokens per second, global, with a 95 % interval over runs."""

    step_seconds: StepSeconds | None
    """Seconds of one optimizer step."""

    peak_memory_bytes: int | None
    """Largest of all ranks, per device; median over runs."""

    peak_memory_kind: str | None
    """How the peak was measured."""

    loss: LossEnds | None
    """Loss at both ends of the run."""

    differs: str
    """What the stack declares, in one line."""


class ExperimentComparison(Frozen):
    """The document of `accel-bench compare`: B against A."""

    schema_version: int = SCHEMA_VERSION
    """Version of this document's form."""

    a: Operand
    """What is compared with."""

    b: Operand
    """What is compared."""

    comparable: bool
    """Whether nothing that matters differs, except what the stacks declare."""

    declared: tuple[Difference, ...]
    """What the two stacks declare as their difference."""

    differing: tuple[Difference, ...]
    """What else differs."""

    paired: bool
    """Whether rounds of one session hold both."""

    rounds: int
    """How many."""

    ratio: Interval | None
    """Speed of B over that of A, with a 95 % interval: over pairs, or of unpaired runs (Welch)."""

    verdict: Verdict
    """Whether B is faster than A: said of comparable pairs only."""

    verdict_reason: str
    """Why there is no verdict, where there is none."""

    minimum_detectable_effect: float | None
    """Smallest relative change of speed that these rounds could have shown; 0.03 is 3 %."""

    rounds_needed: int | None
    """Rounds in all that would settle an open verdict."""

    loss_verdict: LossWord
    """Whether the loss curve of B is that of A."""

    loss_difference: float | None
    """Largest relative difference of the smoothed curves; 0.01 is 1 %."""

    loss_tolerance: float | None
    """What was allowed."""

    loss_reason: str
    """Why the loss verdict is not `equivalent`, where it is not."""


def compare_stored(a: Sequence[Result], b: Sequence[Result]) -> ExperimentComparison:
    """Compare the runs of one experiment with those of another; at least one run each."""
    left, right = _collect(a), _collect(b)
    allowed = comparability(list(left.counted.values()), list(right.counted.values()))
    paired = bool(set(left.speeds) & set(right.speeds))
    speed = _judge(left, right, allowed, paired)
    loss = _loss(left, right, allowed, paired)
    steps = shared_steps([left, right])
    return ExperimentComparison(
        a=_side(left, steps),
        b=_side(beside_baseline(right, left), steps),
        comparable=allowed.comparable,
        declared=allowed.declared,
        differing=allowed.differing,
        paired=paired,
        rounds=speed.rounds,
        ratio=speed.ratio,
        verdict=speed.verdict,
        verdict_reason=speed.reason,
        minimum_detectable_effect=speed.minimum_detectable_effect,
        rounds_needed=speed.rounds_needed,
        loss_verdict=loss.verdict,
        loss_difference=loss.largest_difference,
        loss_tolerance=loss.tolerance,
        loss_reason=loss.reason,
    )


def unpaired_ratio(a: Sequence[float], b: Sequence[float]) -> Interval | None:
    """a / b of positive values that are no pairs, with Welch's 95 % interval of the log-ratio.

    Source: Welch (1947), "The generalization of Student's problem when several different population
    variances are involved". Null ends with fewer than two values on a side; None without any.
    """
    if not a or not b:
        return None
    left, right = [math.log(value) for value in a], [math.log(value) for value in b]
    mean = fmean(left) - fmean(right)
    if min(len(left), len(right)) < 2:
        return Interval(median=math.exp(mean), low=None, high=None)
    shares = [variance(values) / len(values) for values in (left, right)]
    total, sizes = sum(shares), (len(left), len(right))
    half = 0.0
    if total > 0:
        parts = sum(share**2 / (size - 1) for share, size in zip(shares, sizes, strict=True))
        half = t_quantile(total**2 / parts, 0.975) * math.sqrt(total)
    return Interval(median=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))


def _collect(runs: Sequence[Result]) -> ExperimentRuns:
    """The numbers of one experiment, of which all stored rounds are wanted."""
    return collect_runs(PlannedSummary(experiment=runs[0].experiment), runs, 0)


def _judge(
    left: ExperimentRuns, right: ExperimentRuns, allowed: Comparability, paired: bool
) -> Comparison:
    """A verdict on comparable pairs; on everything else the ratio, and why there is no more."""
    before, after = left.seconds_per_token, right.seconds_per_token
    found = compare(before, {"b": after})["b"]
    if not paired:
        ratio = unpaired_ratio(list(before.values()), list(after.values()))
        reason = HISTORY if ratio else _obstacle(left, right)
        return Comparison(rounds=0, ratio=ratio, verdict="not tested", reason=reason)
    if allowed.comparable:
        return found
    keys = join_names([difference.key for difference in allowed.differing])
    changes = {
        "verdict": "not tested",
        "reason": f"not comparable: {keys} differ without being declared",
        "rounds_needed": None,
    }
    return found.model_copy(update=changes)


def _obstacle(left: ExperimentRuns, right: ExperimentRuns) -> str:
    """Why there is no ratio at all."""
    ended = {
        name: side.ending.status.value
        for name, side in (("A", left), ("B", right))
        if not side.speeds
    }
    return ", ".join(f"{name} ended as {status}" for name, status in ended.items())


def _loss(
    left: ExperimentRuns, right: ExperimentRuns, allowed: Comparability, paired: bool
) -> LossVerdict:
    """Curves of pairs; seeds and data being equal, those of other comparable runs too."""
    if not allowed.comparable:
        return LossVerdict(verdict="not tested", reason="not comparable")
    if paired:
        return compare_losses(left.completed, right.completed)
    return compare_losses(_numbered(left.completed), _numbered(right.completed))


def _numbered(runs: Mapping[RoundKey, Value]) -> dict[RoundKey, Value]:
    """Runs by their number alone, so that the first stands beside the first."""
    return {("", number): run for number, run in enumerate(runs.values())}


def _side(side: ExperimentRuns, steps: int) -> Operand:
    """What is said of one of the two; `steps` is how many all runs of both took."""
    experiment, runs = side.planned.experiment, list(side.counted.values())
    peak, kind = peak_memory(side.completed)
    hosts = (run.machine.host for run in runs if run.machine)
    return Operand(
        experiment_id=experiment.id,
        scenario=experiment.scenario.name,
        stack=experiment.stack.name,
        sweep=experiment.sweep,
        sessions=tuple(dict.fromkeys(run.session for run in runs)),
        hosts=tuple(dict.fromkeys(host for host in hosts if host)),
        status=side.ending.status,
        reasons=side.ending.reasons,
        runs=len(side.completed),
        tokens_per_second=side.tokens_per_second,
        step_seconds=step_seconds(side.speeds),
        peak_memory_bytes=peak,
        peak_memory_kind=kind,
        loss=loss_ends(side.speeds, steps),
        differs=differs(experiment.stack),
    )

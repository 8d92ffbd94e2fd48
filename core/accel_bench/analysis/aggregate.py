"""The numbers of one experiment: its completed runs brought together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev

from accel_bench.analysis.checks.audit import with_audit
from accel_bench.analysis.checks.gradients import gradient_reasons
from accel_bench.analysis.metrics.throughput import RunThroughput, run_throughput
from accel_bench.analysis.schema import LossEnds, PlannedSummary, StepSeconds
from accel_bench.analysis.statistics.comparison import PairKey
from accel_bench.analysis.statistics.estimators import Interval, geometric_interval, quantile
from accel_bench.analysis.status import BY_THE_USER, StopReason, counted_runs, ending
from accel_bench.result import Metric, Result, Status

PEAK_MEMORY = "peak_memory_bytes"
"""Name of the metric that stands in every table."""


@dataclass(frozen=True)
class ExperimentRuns:
    """An experiment with the runs that count."""

    planned: PlannedSummary
    """What was planned."""

    ending: StopReason
    """How it ended."""

    counted: Mapping[PairKey, Result]
    """Runs that count, however they ended."""

    completed: Mapping[PairKey, Result]
    """Those of them whose numbers may be used: none when any run is invalid."""

    speeds: Mapping[PairKey, RunThroughput]
    """What the completed ones measured."""

    @property
    def usable(self) -> bool:
        """Whether it may be compared with others."""
        return self.ending.status.completed and bool(self.speeds)

    @property
    def seconds_per_token(self) -> dict[PairKey, float]:
        """Seconds per real token of every completed run: what is compared."""
        return {key: speed.seconds_per_token for key, speed in self.speeds.items()}

    @property
    def tokens_per_second(self) -> Interval | None:
        """Real tokens per second, global, over runs."""
        return geometric_interval([speed.tokens_per_second for speed in self.speeds.values()])

    @property
    def middle(self) -> Result | None:
        """The completed run of median speed, the slower of two: what is shown of one run alone."""
        keys = sorted(self.speeds, key=lambda key: self.speeds[key].tokens_per_second)
        return self.completed[keys[(len(keys) - 1) // 2]] if keys else None

    @property
    def last(self) -> Result | None:
        """The last completed run."""
        return list(self.completed.values())[-1] if self.completed else None


def collect_runs(
    planned: PlannedSummary,
    results: Sequence[Result],
    rounds: int,
    stopped: StopReason = BY_THE_USER,
) -> ExperimentRuns:
    """Pick the experiment's runs out of all results and say how it ended.

    Stacks that do the same have the same identity, so the stack's name must agree too. A skipped
    experiment has no runs, whatever an earlier session left. Runs whose figures disagree with one
    another are degraded, also those that were stored long ago.
    """
    experiment = planned.experiment
    own = [
        result
        for result in results
        if not planned.skipped
        and result.experiment.id == experiment.id
        and result.experiment.stack.name == experiment.stack.name
    ]
    counted = {key: with_audit(run) for key, run in counted_runs(own).items()}
    end = ending(planned, list(counted.values()), rounds, stopped)
    valid = end.status is not Status.INVALID
    completed = {key: run for key, run in counted.items() if valid and run.status.completed}
    speeds = {key: speed for key, run in completed.items() if (speed := run_throughput(run))}
    return ExperimentRuns(planned, end, counted, completed, speeds)


def step_seconds(speeds: Mapping[PairKey, RunThroughput]) -> StepSeconds | None:
    """Quantiles of each run, then the median over runs: steps of runs are never pooled."""
    if not speeds:
        return None
    p50, p90, p95, p99 = (
        median(quantile(speed.step_seconds, share) for speed in speeds.values())
        for share in (0.50, 0.90, 0.95, 0.99)
    )
    medians = [median(speed.step_seconds) for speed in speeds.values()]
    spread = stdev(medians) / fmean(medians) if len(medians) > 1 else None
    return StepSeconds(p50=p50, p90=p90, p95=p95, p99=p99, spread=spread)


def beside_baseline(row: ExperimentRuns, base: ExperimentRuns) -> ExperimentRuns:
    """The row, degraded where its first step did not have the baseline's gradients."""
    reasons = gradient_reasons(base.completed, row.completed)
    if not reasons:
        return row
    ending = StopReason(Status.DEGRADED, (*row.ending.reasons, *reasons))
    return replace(row, ending=ending)


def shared_steps(rows: Sequence[ExperimentRuns]) -> int:
    """How many steps every completed run of these rows took, warm-up included."""
    counts = [len(speed.losses) for row in rows for speed in row.speeds.values()]
    return min(counts, default=0)


def loss_ends(speeds: Mapping[PairKey, RunThroughput], steps: int) -> LossEnds | None:
    """Loss of the first and of the last of `steps` steps, in the first completed run."""
    first = next(iter(speeds.values()), None)
    if first is None:
        return None
    return LossEnds(first=first.losses[0], last=first.losses[steps - 1], last_step=steps - 1)


def peak_memory(runs: Mapping[PairKey, Result]) -> tuple[int | None, str | None]:
    """Bytes of the rank that needed most, as a median over runs, and how they were measured."""
    metrics = [_peak_metrics(run) for run in runs.values()]
    known = [metric for run in metrics for metric in run]
    if not known:
        return None, None
    kind = known[0].kind
    peaks = [_peak([metric for metric in run if metric.kind == kind]) for run in metrics]
    bytes_used = [peak for peak in peaks if peak is not None]
    return (round(median(bytes_used)) if bytes_used else None), kind or None


def _peak_metrics(run: Result) -> list[Metric]:
    """The metric of every rank that reports it."""
    return [m for rank in run.ranks for m in rank.metrics if m.name == PEAK_MEMORY]


def _peak(metrics: Sequence[Metric]) -> float | None:
    """The largest; unknown as soon as one is, since that may have been the largest."""
    values = [metric.value for metric in metrics if metric.value is not None]
    return max(values) if values and len(values) == len(metrics) else None

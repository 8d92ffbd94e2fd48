"""How an experiment ended, which of its runs count, and the numbers of the completed ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev
from typing import NamedTuple

from accel_bench.analysis.checks.audit import with_audit
from accel_bench.analysis.checks.gradients import gradient_reasons
from accel_bench.analysis.metrics.throughput import RunThroughput, run_throughput
from accel_bench.analysis.schema import LossEnds, PlannedSummary, StepSeconds
from accel_bench.analysis.statistics.estimators import Interval, geometric_interval, quantile
from accel_bench.analysis.statistics.verdict import RoundKey
from accel_bench.result import Metric, Result, Status


class StopReason(NamedTuple):
    """How an experiment ended, or what ended a session before its time."""

    status: Status
    """Exactly one."""

    reasons: tuple[str, ...] = ()
    """Why it is not `ok`; each once."""


BY_THE_USER = StopReason(Status.INTERRUPTED, ("it was planned and never run",))
"""What ends a session early when nothing else has."""


@dataclass(frozen=True)
class ExperimentRuns:
    """An experiment with the runs that count."""

    planned: PlannedSummary
    """What was planned."""

    ending: StopReason
    """How it ended."""

    counted: Mapping[RoundKey, Result]
    """Runs that count, however they ended."""

    completed: Mapping[RoundKey, Result]
    """Those of them whose numbers may be used: none when any run is invalid."""

    speeds: Mapping[RoundKey, RunThroughput]
    """What the completed ones measured."""

    @property
    def usable(self) -> bool:
        """Whether it may be compared with others."""
        return self.ending.status.completed and bool(self.speeds)

    @property
    def seconds_per_token(self) -> dict[RoundKey, float]:
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


def counted_runs(results: Iterable[Result]) -> dict[RoundKey, Result]:
    """Runs of one experiment that count, by session and round, oldest session first.

    Of the attempts of a run only the last counts. A run that failed does not count either when a
    later session ran its round again, since that is how a run is resumed.
    """
    last: dict[RoundKey, Result] = {}
    for result in sorted(results, key=lambda result: (result.started_at, result.attempt)):
        key = (result.session, result.round)
        if key not in last or result.attempt >= last[key].attempt:
            last[key] = result
    sessions = list(dict.fromkeys(session for session, _ in last))
    latest = {key[1]: max(sessions.index(s) for s, r in last if r == key[1]) for key in last}
    kept = {
        key: result
        for key, result in last.items()
        if result.status.completed or sessions.index(key[0]) == latest[key[1]]
    }
    return dict(sorted(kept.items(), key=lambda item: (sessions.index(item[0][0]), item[0][1])))


def ending(
    planned: PlannedSummary,
    counted: Sequence[Result],
    rounds: int,
    stopped: StopReason = BY_THE_USER,
) -> StopReason:
    """Apply the rule: all ok is ok, half completed is degraded, one invalid run spoils all.

    `stopped` is how an experiment ended whose runs were never made, or not to the end.
    """
    if not counted:
        return StopReason(Status.SKIPPED, planned.skipped) if planned.skipped else stopped
    statuses = [result.status for result in counted]
    completed = sum(status.completed for status in statuses)
    reasons = _reasons(counted)
    if Status.INVALID in statuses:
        return StopReason(Status.INVALID, reasons)
    wanted = max(rounds, len(counted))
    if completed < wanted:
        reasons = (*reasons, f"{completed} of {wanted} runs completed{_failures(statuses)}")
    if 2 * completed < wanted:
        failure = _commonest(statuses)
        return StopReason(failure or stopped.status, reasons)
    if completed == wanted and set(statuses) == {Status.OK}:
        return StopReason(Status.OK)
    return StopReason(Status.DEGRADED, reasons)


def _reasons(counted: Sequence[Result]) -> tuple[str, ...]:
    """Reasons of all runs, each once, in the order in which they came up."""
    return tuple(dict.fromkeys(reason for result in counted for reason in result.reasons))


def _failures(statuses: Sequence[Status]) -> str:
    """`: oom 2, killed 1`."""
    counts = Counter(status.value for status in statuses if not status.completed)
    listed = ", ".join(f"{status} {count}" for status, count in counts.most_common())
    return f": {listed}" if listed else ""


def _commonest(statuses: Sequence[Status]) -> Status | None:
    """The commonest failure, the first of equals; None where the rounds were only cut short."""
    counts = Counter(status for status in statuses if not status.completed)
    return counts.most_common(1)[0][0] if counts else None


def step_seconds(speeds: Mapping[RoundKey, RunThroughput]) -> StepSeconds | None:
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


def loss_ends(speeds: Mapping[RoundKey, RunThroughput], steps: int) -> LossEnds | None:
    """Loss of the first and of the last of `steps` steps, in the first completed run."""
    first = next(iter(speeds.values()), None)
    if first is None:
        return None
    return LossEnds(first=first.losses[0], last=first.losses[steps - 1], last_step=steps - 1)


def peak_memory(runs: Mapping[RoundKey, Result]) -> tuple[int | None, str | None]:
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
    return [m for rank in run.ranks for m in rank.metrics if m.figure == "peak_memory"]


def _peak(metrics: Sequence[Metric]) -> float | None:
    """The largest; unknown as soon as one is, since that may have been the largest."""
    values = [metric.value for metric in metrics if metric.value is not None]
    return max(values) if values and len(values) == len(metrics) else None

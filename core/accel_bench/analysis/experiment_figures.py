"""Speed, memory, losses and metrics of an experiment over its completed runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median, stdev

from accel_bench.analysis.aggregate import ExperimentRuns
from accel_bench.analysis.metrics.memory import peak_memory
from accel_bench.analysis.metrics.plugin_metrics import named_metrics
from accel_bench.analysis.metrics.throughput import RunThroughput
from accel_bench.analysis.schema import ExperimentFigures, LossEnds, Rates, StepSeconds
from accel_bench.analysis.statistics.estimators import positive_interval, quantile
from accel_bench.analysis.statistics.verdict import RoundKey
from accel_bench.analysis.wording import differs


def figures(row: ExperimentRuns, steps: int) -> ExperimentFigures:
    """Return speed, memory, losses and metrics of an experiment whose runs share `steps` steps."""
    experiment = row.planned.experiment
    peak, kind = peak_memory(list(row.completed.values()))
    trained = row.speeds if experiment.scenario.trains else {}
    scenario = experiment.scenario
    return ExperimentFigures(
        experiment_id=experiment.id,
        stack=experiment.stack.name,
        sweep=experiment.sweep,
        tag=experiment.tag,
        status=row.ending.status,
        runs=len(row.completed),
        mode=scenario.mode,
        counts=scenario.counts,
        tokens_per_second=row.tokens_per_second,
        quantity=row.quantity.without_costs,
        reasons=row.ending.reasons,
        failed_audit=row.failed_audit,
        step_seconds=_step_seconds(row.speeds),
        rates=_rates(list(row.speeds.values())),
        peak_memory_bytes=peak,
        peak_memory_kind=kind,
        offered_rate=row.rate,
        saturated=row.saturated,
        loss=_loss_ends(trained, steps),
        losses=next((speed.loss_statistics for speed in trained.values()), None),
        differs=differs(experiment.stack),
        metrics=named_metrics(list(row.completed.values())),
    )


def _rates(speeds: Sequence[RunThroughput]) -> Rates | None:
    if not speeds:
        return None
    return Rates(
        tokens_per_hour=positive_interval([speed.tokens_per_hour for speed in speeds]),
        samples_per_second=positive_interval([speed.samples_per_second for speed in speeds]),
        steps_per_second=positive_interval([speed.steps_per_second for speed in speeds]),
    )


def _step_seconds(speeds: Mapping[RoundKey, RunThroughput]) -> StepSeconds | None:
    """Return quantiles of step seconds, each as the median over runs of a run's own quantile."""
    if not speeds:
        return None
    p50, p90, p95, p99 = (
        median(quantile(speed.step_seconds, fraction) for speed in speeds.values())
        for fraction in (0.50, 0.90, 0.95, 0.99)
    )
    medians = [median(speed.step_seconds) for speed in speeds.values()]
    spread = stdev(medians) / fmean(medians) if len(medians) > 1 else None
    return StepSeconds(p50=p50, p90=p90, p95=p95, p99=p99, spread=spread)


def _loss_ends(speeds: Mapping[RoundKey, RunThroughput], steps: int) -> LossEnds | None:
    first = next(iter(speeds.values()), None)
    if first is None:
        return None
    return LossEnds(first=first.losses[0], last=first.losses[steps - 1], last_step=steps - 1)

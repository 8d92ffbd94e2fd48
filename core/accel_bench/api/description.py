"""Description of a run for experiment trackers: settings, metrics and steps as plain values."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from accel_bench.analysis.metrics.throughput import run_throughput
from accel_bench.analysis.tables.listing import metrics_by_name
from accel_bench.result import Result, Sample, Status, TimeSeries
from accel_bench.store.fields import derived_columns
from accel_bench.store.records import identity_columns
from accel_bench.store.schema import EFFECTIVE, FIGURES, IMPORTED, SETTINGS, DerivedColumn

RANKING = frozenset(
    (
        *("tokens_per_second", "tokens_per_second_per_device", "seconds_per_token"),
        *("median_step_seconds", "mfu"),
    )
)
"""Names of measures of speed, which only a completed run may have."""


class Step(NamedTuple):
    """One optimizer step over all ranks."""

    step: int
    """Step number from 0, warm-up included."""

    measured: bool
    """True for a step of the measured window."""

    seconds: float
    """Seconds that the slowest rank took for the step."""

    real_tokens: int
    """Tokens without padding, summed over the ranks with batches of their own."""

    loss: float | None
    """Loss of the step; None if it was not finite."""


class RunDescription(NamedTuple):
    """Description of a run for experiment trackers; keys are named as columns of the store."""

    identity: dict[str, Any]
    """Ids, status, reasons and machine of the run."""

    settings: dict[str, Any]
    """Requested settings, with the options of plugins, by dotted key."""

    effective: dict[str, Any]
    """Effective configuration, which was read back from the run, by dotted key."""

    figures: dict[str, float]
    """Measured numbers by name, which ends in the unit. A run that did not complete has neither
    measures of speed nor metrics of plugins."""

    steps: tuple[Step, ...]
    """Optimizer steps in order, warm-up included; empty if a rank has no measured window."""

    series: dict[str, TimeSeries]
    """Readings over time, by the name of the metric."""


def describe_run(result: Result) -> RunDescription:
    """Return a run's settings, metrics and steps for experiment trackers, without unknown ones."""
    columns = derived_columns(result)

    def known(listed: tuple[DerivedColumn, ...]) -> dict[str, Any]:
        named = {column.name: columns[column.column] for column in listed}
        return {name: value for name, value in named.items() if value not in (None, "")}

    identity = {**identity_columns(result), "reasons": "", "log": result.folder}
    measures = known(FIGURES)
    texts = {name: value for name, value in measures.items() if isinstance(value, str)}
    texts["status"] = texts.pop("audited_status", result.status.value)
    metrics = json.loads(columns["metrics"] or "{}")
    figures = {name: value for name, value in measures.items() if name not in texts}
    figures |= {f"metrics.{name}": value for name, value in metrics.items()}
    if not _is_completed(texts["status"]):
        # A tracker ranks whatever it gets: a run that counts nowhere has no speed there either.
        figures = {name: value for name, value in figures.items() if name not in RANKING}
        figures = {
            name: value for name, value in figures.items() if not name.startswith("metrics.")
        }
    return RunDescription(
        identity={**identity, **texts},
        settings={**known(SETTINGS), **json.loads(columns["options"] or "{}")},
        effective=known(EFFECTIVE),
        figures={name: value for name, value in figures.items() if isinstance(value, int | float)},
        steps=_steps(result),
        series={
            name: metric.series
            for name, metric in metrics_by_name(result).items()
            if metric.series is not None
        },
    )


def _is_completed(audited: str) -> bool:
    """Return whether `audited`, the status after the run's self-audit, is imported or completed."""
    return audited == IMPORTED or Status(audited).completed


def _steps(result: Result) -> tuple[Step, ...]:
    speed = run_throughput(result)
    windows = {rank.rank: rank.window for rank in result.ranks if rank.window is not None}
    if speed is None:
        return ()
    counted = {rank.rank for rank in result.data_ranks}
    by_step: dict[int, dict[int, Sample]] = {}
    for rank, window in windows.items():
        for sample in window.all_steps:
            by_step.setdefault(sample.step, {})[rank] = sample
    measured = {sample.step for window in windows.values() for sample in window.samples}
    return tuple(
        Step(
            step=step,
            measured=step in measured,
            seconds=max(sample.seconds for sample in ranks.values()),
            real_tokens=sum(
                sample.real_tokens for rank, sample in ranks.items() if rank in counted
            ),
            loss=speed.losses[step] if step < len(speed.losses) else None,
        )
        for step, ranks in sorted(by_step.items())
    )

"""Figures and metrics of a run as cells of a row, and the columns of `results list`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from accel_bench.analysis.learning.curves import learning_metrics
from accel_bench.analysis.metrics.memory import memory_figures, peak_memory
from accel_bench.analysis.metrics.throughput import RunThroughput, epochs, run_throughput
from accel_bench.analysis.metrics.utilization import mfu_6n, peak_flops_of, utilization
from accel_bench.documents.canonical import canonical_json
from accel_bench.result import Metric, Result

Cells = dict[str, Any]
"""Cells of a row by column name: texts, numbers and None."""


def names_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the column names of rows in order of appearance, without duplicates."""
    alike = dict.fromkeys(map(tuple, rows))
    return list(dict.fromkeys(name for names in alike for name in names))


LIST_COLUMNS = (
    "run_id",
    "experiment_id",
    "scenario",
    "stack",
    "sweep",
    "tag",
    "round",
    "attempt",
    "status",
    "tokens_per_second",
    "samples_per_second",
    "steps_per_second",
    "started_at",
    "provenance",
)
"""Columns of `results list`."""


def provenance_of(result: Result) -> str:
    """Return the origin of a result: `measured`, `exported`, or `imported` with the format."""
    return f"{result.provenance.origin} {result.provenance.format}".rstrip()


def differing_keys(left: Any, right: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Return (dotted key, left value, right value) of each difference; None for a missing key.
    `path` is the dotted key of the two values themselves."""
    if canonical_json(left) == canonical_json(right):
        return []
    if isinstance(left, dict) and isinstance(right, dict):
        keys = [*left, *(key for key in right if key not in left)]
        return [
            difference
            for key in keys
            for difference in differing_keys(
                left.get(key), right.get(key), f"{path}.{key}" if path else key
            )
        ]
    return [(path, left, right)]


def flat_figures(result: Result) -> Cells:
    """Return speed, losses, utilization and peak memory of a run; empty without a window.

    `peak_memory_bytes` is the peak of tensors on a GPU, else of the process; `peak_nvml_bytes` is
    the driver's peak, context and caches included.
    """
    speed = run_throughput(result)
    if speed is None:
        return {}
    peak = peak_flops_of(result)
    used = utilization(result, peak) if peak else None
    memory = memory_figures([result])
    driver = memory.nvml if memory else None
    return {
        **flat_speed(speed),
        "epochs": epochs(result),
        "mfu": used.mfu.causal if used and used.mfu else None,
        "mfu_6n": mfu_6n(result, peak),
        "peak_memory_bytes": peak_memory([result])[0],
        "peak_nvml_bytes": driver.bytes if driver else None,
    }


def flat_speed(speed: RunThroughput | None) -> Cells:
    """Return speed and losses of a window, over all devices; empty if `speed` is None.

    Statistics of the losses are None if one is unknown.
    """
    if speed is None:
        return {}
    losses = [loss for loss in speed.losses if loss is not None]
    stats = speed.loss_statistics
    return {
        "tokens_per_second": speed.tokens_per_second,
        "tokens_per_second_per_device": speed.tokens_per_second_per_device,
        "seconds_per_token": speed.seconds_per_token,
        "median_step_seconds": median(speed.step_seconds) if speed.step_seconds else None,
        "tokens_per_hour": speed.tokens_per_hour,
        "samples_per_second": speed.samples_per_second,
        "steps_per_second": speed.steps_per_second,
        "steps": len(speed.step_seconds),
        "real_tokens": speed.real_tokens,
        "samples": speed.sequences,
        "window_seconds": speed.seconds,
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
        **{f"{name}_loss": getattr(stats, name, None) for name in ("mean", "minimum", "maximum")},
        "loss_standard_deviation": stats and stats.standard_deviation,
    }


def flat_metrics(result: Result) -> Cells:
    """Return the values of a run's metrics by name: metrics of ranks, of the whole run, and of
    evaluations. A name that two plugins share begins with the plugin's name."""
    return {name: metric.value for name, metric in metrics_by_name(result).items()}


def metrics_by_name(result: Result) -> dict[str, Metric]:
    """Return the metrics of a run by the names of `flat_metrics`, with unit and direction."""
    measured = [(metric.rank or 0, metric) for metric in result.metrics]
    measured += [(rank.rank, metric) for rank in reversed(result.ranks) for metric in rank.metrics]
    measured += [(0, metric) for metric in learning_metrics(result)]
    plugins: dict[str, set[str]] = {}
    for rank, metric in measured:
        plugins.setdefault(_metric_name(metric, rank), set()).add(metric.plugin)
    by_name = {}
    for rank, metric in measured:
        name = _metric_name(metric, rank)
        by_name[f"{metric.plugin}_{name}" if len(plugins[name]) > 1 else name] = metric
    return by_name


def _metric_name(metric: Metric, rank: int) -> str:
    """Return the column name of a metric: name, kind, unit and rank, as far as needed."""
    parts = [metric.name, metric.kind.replace(" ", "_")]
    if metric.unit != "1" and metric.unit not in metric.name:
        parts.append(metric.unit)
    if metric.scope != "global":
        parts.append(f"rank{rank}")
    return "_".join(part for part in parts if part)

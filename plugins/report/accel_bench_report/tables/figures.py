"""Named figures of experiments with units and intervals, which fill the cells of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, median, stdev

from accel_bench.analysis.aggregate import ExperimentRuns
from accel_bench.analysis.metrics.breakdown import phases
from accel_bench.analysis.metrics.memory import memory_figures, peak_memory
from accel_bench.analysis.metrics.plugin_metrics import MetricFigure, named_metrics
from accel_bench.analysis.metrics.throughput import RunThroughput, epochs, run_throughput
from accel_bench.analysis.metrics.utilization import (
    devices_used,
    mfu_6n,
    peak_flops_of,
    utilization,
)
from accel_bench.analysis.quantity import QUANTITIES, SHORT_NAMES, Better
from accel_bench.analysis.statistics.estimators import (
    Interval,
    median_of_known,
    positive_interval,
)
from accel_bench.analysis.wording import join_names
from accel_bench.errors import StoreError, did_you_mean
from accel_bench.result import Result
from accel_bench_report.tables.expenses import Terms, hourly_usd, usd_per_million_tokens

TIMES_AS_FAST = "times_as_fast"
"""Name of the only figure that compares two experiments."""


Compute = Callable[[ExperimentRuns, Terms], Interval | None]
"""Function that returns a figure with its 95 % interval over runs, if any; None if unknown."""


@dataclass(frozen=True)
class Figure:
    """A named figure of experiments, such as `tokens_per_second`."""

    name: str
    """Name of the figure, as in `--values`."""

    unit: str
    """Unit of the figure, with its scope if it does not count all devices."""

    compute: Compute

    better: Better = "neither"
    """Better direction: `higher`, `lower` or `neither`."""


def find_figures(names: Iterable[str], rows: Iterable[ExperimentRuns] = ()) -> list[Figure]:
    """Return figures by name: FIGURES, and the metrics of `rows` with or without the measurement.

    The metric `mean_host_memory_bytes rss` is also `mean_host_memory_bytes`, for example. Raises
    StoreError for a name of several metrics, and with the nearest name for an unknown name.
    """
    names = [SHORT_NAMES.get(name, name) for name in names]
    others = () if FIGURES.keys() >= {*names} else rows
    runs = [run for row in others for run in row.completed.values()]
    metrics = {metric.name: metric for metric in named_metrics(runs)}
    return [FIGURES.get(name) or _figure_of(name, metrics) for name in names]


def _figure_of(name: str, metrics: Mapping[str, MetricFigure]) -> Figure:
    """Return the one of `metrics` with a name as a figure of experiments. Raises StoreError."""
    matches = [name] if name in metrics else [m for m in metrics if m.partition(" ")[0] == name]
    if len(matches) > 1:
        raise StoreError(f"{name} is {join_names(sorted(matches))}: name one of them")
    if not matches:
        known = FIGURES.keys() | metrics.keys() | {m.partition(" ")[0] for m in metrics}
        raise StoreError(f"there is no figure {name!r}{did_you_mean(name, known)}")
    metric = metrics[matches[0]]
    return Figure(metric.name, metric.unit, _of_metric(metric.name), metric.better)


def _of_runs(read: Callable[[RunThroughput], float]) -> Compute:
    """Return a function that estimates a figure with its interval from the values that `read`
    returns for the completed runs."""
    return lambda row, terms: positive_interval([read(speed) for speed in row.speeds.values()])


def _one(read: Callable[[ExperimentRuns], float | None]) -> Compute:
    """Return a function that computes a figure without an interval; `read` reads its value from an
    experiment."""

    def compute(row: ExperimentRuns, terms: Terms) -> Interval | None:
        value = read(row)
        return None if value is None else Interval(median=value, low=None, high=None)

    return compute


def _median(read: Callable[[RunThroughput], float | None]) -> Compute:
    """Return a function that computes a median over runs, without interval as runs share seeds."""
    return _one(lambda row: median_of_known(read(speed) for speed in row.speeds.values()))


def _deviation_of_steps(speed: RunThroughput) -> float | None:
    return stdev(speed.step_seconds) if len(speed.step_seconds) > 1 else None


def _statistic(name: str) -> Compute:
    return _median(lambda speed: getattr(speed.loss_statistics, name, None))


def _used(kind: str, unit: float = 1.0) -> Compute:
    """Return a function that computes a figure of FLOPs, such as `mfu`, divided by `unit`.

    `kind` names the figure as a field of the utilization. Attention is counted as causal.
    """
    return _by_speed(lambda run: _utilization(run, kind), unit)


def _by_speed(read: Callable[[Result], float | None], unit: float = 1.0) -> Compute:
    """Return a function that computes a figure proportional to speed, with an interval over runs.

    `read` gives the figure of the run of median speed, the only run of which all data are kept. The
    figure is divided by `unit`, and scaled to the speed of each run.
    """

    def compute(row: ExperimentRuns, terms: Terms) -> Interval | None:
        value = read(row.middle) if row.middle else None
        speed = run_throughput(row.middle) if row.middle else None
        if not value or not speed:
            return None
        per_token = value / unit / speed.tokens_per_second
        return positive_interval([per_token * own.tokens_per_second for own in row.speeds.values()])

    return compute


def _utilization(run: Result, kind: str) -> float | None:
    used = utilization(run, peak_flops_of(run))
    rate = getattr(used, kind, None)
    return rate.causal if rate else None


def _mfu_6n(run: Result) -> float | None:
    return mfu_6n(run, peak_flops_of(run))


def _mfu_forward_backward(row: ExperimentRuns) -> float | None:
    """Return the MFU over forward and backward time alone; None if it is unknown."""
    mfu = _utilization(row.middle, "mfu") if row.middle else None
    split = phases(list(row.completed.values()))
    passes = split and split.forward and split.backward and split.forward + split.backward
    return mfu * split.step_seconds / passes if mfu and split and passes else None


def _layers(row: ExperimentRuns) -> int | None:
    """Return the number of attention layers that the model has; None if unknown."""
    load = row.last.ranks[0].workload if row.last and row.last.ranks else None
    return sum(kind.count for kind in load.attentions) or None if load else None


def _memory(name: str, peak: str = "bytes") -> Compute:
    """Return a function that reads the field `peak` of the memory measurement `name`.

    `name` is a field of `MemoryFigures`, such as `allocated`.
    """

    def read(row: ExperimentRuns) -> float | None:
        figure = getattr(memory_figures(list(row.completed.values())), name, None)
        return getattr(figure, peak, None)

    return _one(read)


def paid_speed(row: ExperimentRuns) -> Interval | None:
    """Return the tokens per second of an experiment; None if it cannot be priced by token.

    It cannot if an operation is called alone, or if requests arrive at a given rate.
    """
    unpriced = row.planned.experiment.scenario.calls_alone or row.rate is not None
    return None if unpriced else row.tokens_per_second


def _dollars_per_million(row: ExperimentRuns, terms: Terms) -> Interval | None:
    speed, rate = paid_speed(row), terms.rate
    if speed is None or rate is None:
        return None
    usd = hourly_usd(row, rate, terms.instances)
    return speed.mapped(lambda value: usd_per_million_tokens(usd, 1, value))


def _hours(row: ExperimentRuns, terms: Terms) -> Interval | None:
    speed, tokens = paid_speed(row), terms.tokens
    if speed is None or tokens is None:
        return None
    return speed.mapped(lambda value: tokens / value / 3600)


def _dollars(row: ExperimentRuns, terms: Terms) -> Interval | None:
    hours, rate = _hours(row, terms), terms.rate
    if hours is None or rate is None:
        return None
    usd = hourly_usd(row, rate, terms.instances)
    return hours.mapped(lambda value: value * usd)


def _of_metric(name: str) -> Compute:
    """Return a function that computes a metric of the worst rank, with an interval over runs."""

    def compute(row: ExperimentRuns, terms: Terms) -> Interval | None:
        figures = named_metrics(list(row.completed.values()))
        metric = next((figure for figure in figures if figure.name == name), None)
        values = [] if metric is None else list(metric.by_round.values())
        return positive_interval(values) if values and min(values) > 0 else None

    return compute


def _of_run(name: str, compute: Compute) -> Figure:
    """Return a figure of experiments that is computed by `compute`. Its unit and better direction
    are those of the figure `name` of single runs."""
    unit, better = QUANTITIES[name]
    return Figure(name, unit, compute, better)


FIGURES = {
    figure.name: figure
    for figure in (
        _of_run("tokens_per_second", _of_runs(lambda s: s.tokens_per_second)),
        _of_run("tokens_per_second_per_device", _of_runs(lambda s: s.tokens_per_second_per_device)),
        _of_run("tokens_per_hour", _of_runs(lambda s: s.tokens_per_hour)),
        _of_run("samples_per_second", _of_runs(lambda s: s.samples_per_second)),
        _of_run("steps_per_second", _of_runs(lambda s: s.steps_per_second)),
        _of_run("median_step_seconds", _of_runs(lambda s: median(s.step_seconds))),
        Figure("mean_step_seconds", "s", _of_runs(lambda s: fmean(s.step_seconds)), "lower"),
        Figure("minimum_step_seconds", "s", _of_runs(lambda s: min(s.step_seconds)), "lower"),
        Figure("maximum_step_seconds", "s", _of_runs(lambda s: max(s.step_seconds)), "lower"),
        Figure("step_seconds_standard_deviation", "s", _median(_deviation_of_steps), "lower"),
        Figure(TIMES_AS_FAST, "times", _one(lambda row: None), "higher"),
        _of_run("mfu", _used("mfu")),
        Figure("mfu_6n", "of peak, 6N", _by_speed(_mfu_6n), "higher"),
        Figure("mfu_forward_backward", "of peak", _one(_mfu_forward_backward), "higher"),
        Figure("hfu", "of peak", _used("hfu"), "higher"),
        Figure("tflops", "TFLOP/s per device", _used("model_flops_per_second", 1e12), "higher"),
        _of_run(
            "peak_memory_bytes", _one(lambda row: peak_memory(list(row.completed.values()))[0])
        ),
        Figure("peak_memory_run", "bytes per device", _memory("allocated", "run_bytes")),
        Figure("peak_reserved", "bytes per device", _memory("reserved")),
        Figure("peak_nvml_bytes", "bytes per device", _memory("nvml")),
        Figure("peak_rss", "bytes per process", _memory("rss")),
        _of_run("first_loss", _median(lambda s: s.losses[0])),
        _of_run("last_loss", _median(lambda s: s.losses[-1])),
        Figure("mean_loss", "", _statistic("mean"), "lower"),
        Figure("minimum_loss", "", _statistic("minimum"), "lower"),
        Figure("maximum_loss", "", _statistic("maximum"), "lower"),
        Figure("loss_standard_deviation", "", _statistic("standard_deviation")),
        Figure("steps", "steps", _median(lambda s: len(s.losses))),
        Figure("epochs", "epochs", _one(lambda row: epochs(row.last) if row.last else None)),
        Figure("window_seconds", "s", _of_runs(lambda s: s.seconds)),
        Figure("devices", "devices", _one(lambda row: devices_used(row.last))),
        Figure("layers", "attention layers", _one(_layers)),
        *(
            Figure(f"{name}_p{percent}", "ms", _of_metric(f"{name}_p{percent}"), "lower")
            for name in ("time_to_first_token", "inter_token_latency", "request_latency")
            for percent in (50, 90, 99)
        ),
        *(
            Figure(name, unit, _of_metric(name), "higher")
            for name, unit in (
                ("prefill_tokens_per_second", "tokens/s"),
                ("decode_tokens_per_second", "tokens/s"),
                ("requests_per_second", "requests/s"),
            )
        ),
        Figure("kv_cache_bytes", "bytes per device", _of_metric("kv_cache_bytes"), "lower"),
        Figure("dollars_per_million_tokens", "USD/1M tokens", _dollars_per_million, "lower"),
        Figure("hours", "h", _hours, "lower"),
        Figure("dollars", "USD", _dollars, "lower"),
    )
}
"""Figures by name; figures of single runs have the names of the store's columns."""

STATED = frozenset(
    "tokens_per_second tokens_per_second_per_device samples_per_second steps_per_second mean_loss "
    "epochs".split()
)
"""Figures that imported experiments may have, from metrics of equal names."""


def stated_figure(row: ExperimentRuns, name: str) -> float | None:
    """Return a figure that an imported experiment's file states, as the mean over the file's
    rows."""
    metrics = (metric for run in row.counted.values() for metric in run.metrics)
    values = [metric.value for metric in metrics if metric.name == name and name in STATED]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

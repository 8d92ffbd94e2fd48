"""Figures of an experiment by name, each with unit and interval: what tables are filled with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median

from accel_bench.analysis.aggregate import ExperimentRuns
from accel_bench.analysis.metrics.cost import at_a_rate, hourly_usd, usd_per_million_tokens
from accel_bench.analysis.metrics.memory import MemoryFigure, memory_figures, peak_memory
from accel_bench.analysis.metrics.named import named_metrics
from accel_bench.analysis.metrics.rate import Terms
from accel_bench.analysis.metrics.throughput import RunThroughput, epochs
from accel_bench.analysis.metrics.utilization import (
    Utilization,
    devices_used,
    mfu_6n,
    peak_flops_of,
    utilization,
)
from accel_bench.analysis.statistics.estimators import (
    Interval,
    median_of_known,
    positive_interval,
)
from accel_bench.analysis.tables.point_schema import Better
from accel_bench.errors import StoreError, did_you_mean

TIMES_AS_FAST = "times_as_fast"
"""The figure that compares two cells; all others are those of one experiment."""


@dataclass(frozen=True)
class Figure:
    """One named figure."""

    name: str
    """Name, as people write it."""

    unit: str
    """Unit, with the scope where that is not global."""

    compute: Callable[[ExperimentRuns, Terms], Interval | None]
    """Return it with its 95 % interval over runs, where it has one; None where it is not known."""

    better: Better = "neither"
    """Which of two values is the better one."""


def find_figures(names: Iterable[str]) -> list[Figure]:
    """Return the figures of these names. Raises StoreError with the nearest name."""
    found = []
    for name in (SHORT_NAMES.get(name, name) for name in names):
        if name not in FIGURES:
            raise StoreError(f"there is no figure {name!r}{did_you_mean(name, FIGURES)}")
        found.append(FIGURES[name])
    return found


def _exactly(value: float | None) -> Interval | None:
    return None if value is None else Interval(median=value, low=None, high=None)


def _of_runs(read: Callable[[RunThroughput], float]) -> Callable[..., Interval | None]:
    """Return the interval of a number of each completed run."""

    def compute(row: ExperimentRuns, terms: Terms) -> Interval | None:
        return positive_interval([read(speed) for speed in row.speeds.values()])

    return compute


def _of_losses(read: Callable[[RunThroughput], float | None]) -> Callable[..., Interval | None]:
    """Return the median over runs of a number of their loss curves: runs share their seeds."""

    def compute(row: ExperimentRuns, terms: Terms) -> Interval | None:
        return _exactly(median_of_known(read(speed) for speed in row.speeds.values()))

    return compute


def _statistic(name: str) -> Callable[..., Interval | None]:
    return _of_losses(lambda speed: getattr(speed.loss_statistics, name, None))


def _used(row: ExperimentRuns) -> Utilization | None:
    """Return how the run of median speed used its devices."""
    run = row.middle
    return utilization(run, peak_flops_of(run)) if run else None


def _samples_per_second(speed: RunThroughput) -> float:
    return speed.samples_per_second


def _mfu(row: ExperimentRuns, terms: Terms) -> Interval | None:
    used = _used(row)
    return _exactly(used.mfu.causal if used and used.mfu else None)


def _hfu(row: ExperimentRuns, terms: Terms) -> Interval | None:
    used = _used(row)
    return _exactly(used.hfu.causal if used and used.hfu else None)


def _mfu_6n(row: ExperimentRuns, terms: Terms) -> Interval | None:
    run = row.middle
    return _exactly(mfu_6n(run, peak_flops_of(run)) if run else None)


def _peak_memory(row: ExperimentRuns, terms: Terms) -> Interval | None:
    return _exactly(peak_memory(list(row.completed.values()))[0])


def _memory(
    name: str, read: Callable[[MemoryFigure], int | None]
) -> Callable[..., Interval | None]:
    def compute(row: ExperimentRuns, terms: Terms) -> Interval | None:
        found = memory_figures(list(row.completed.values()))
        figure = getattr(found, name, None)
        return _exactly(read(figure) if figure else None)

    return compute


def _epochs(row: ExperimentRuns, terms: Terms) -> Interval | None:
    return _exactly(epochs(row.last) if row.last else None)


def paid_speed(row: ExperimentRuns) -> Interval | None:
    """Return the speed where tokens are counted, which have hours and a price."""
    unpriced = row.planned.experiment.scenario.calls_alone or at_a_rate(row)
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


def _devices(row: ExperimentRuns, terms: Terms) -> Interval | None:
    return _exactly(devices_used(row.last))


def _of_metric(name: str) -> Callable[..., Interval | None]:
    """Return the interval of a metric of each completed run; of several ranks the worst."""

    def compute(row: ExperimentRuns, terms: Terms) -> Interval | None:
        figures = named_metrics(list(row.completed.values()))
        found = next((one for one in figures if one.name == name), None)
        values = [] if found is None else list(found.by_round.values())
        return positive_interval(values) if values and min(values) > 0 else None

    return compute


def _none(row: ExperimentRuns, terms: Terms) -> Interval | None:
    return None


FIGURES = {
    figure.name: figure
    for figure in (
        Figure("tokens_per_second", "tokens/s", _of_runs(lambda s: s.tokens_per_second), "higher"),
        Figure(
            "tokens_per_second_per_device",
            "tokens/s per device",
            _of_runs(lambda s: s.tokens_per_second_per_device),
            "higher",
        ),
        Figure("tokens_per_hour", "tokens/h", _of_runs(lambda s: s.tokens_per_hour), "higher"),
        Figure("samples_per_second", "samples/s", _of_runs(_samples_per_second), "higher"),
        Figure("steps_per_second", "steps/s", _of_runs(lambda s: s.steps_per_second), "higher"),
        Figure("median_step_seconds", "s", _of_runs(lambda s: median(s.step_seconds)), "lower"),
        Figure(TIMES_AS_FAST, "times", _none, "higher"),
        Figure("mfu", "of peak", _mfu, "higher"),
        Figure("mfu_6n", "of peak, 6N", _mfu_6n, "higher"),
        Figure("hfu", "of peak", _hfu, "higher"),
        Figure("peak_memory_bytes", "bytes per device", _peak_memory, "lower"),
        Figure("peak_memory_run", "bytes per device", _memory("allocated", lambda m: m.run_bytes)),
        Figure("peak_reserved", "bytes per device", _memory("reserved", lambda m: m.bytes)),
        Figure("peak_nvml_bytes", "bytes per device", _memory("nvml", lambda m: m.bytes)),
        Figure("peak_rss", "bytes per process", _memory("rss", lambda m: m.bytes)),
        Figure("first_loss", "", _of_losses(lambda s: s.losses[0])),
        Figure("last_loss", "", _of_losses(lambda s: s.losses[-1]), "lower"),
        Figure("mean_loss", "", _statistic("mean"), "lower"),
        Figure("minimum_loss", "", _statistic("minimum"), "lower"),
        Figure("maximum_loss", "", _statistic("maximum"), "lower"),
        Figure("loss_standard_deviation", "", _statistic("standard_deviation")),
        Figure("steps", "steps", _of_losses(lambda s: len(s.losses))),
        Figure("epochs", "epochs", _epochs),
        Figure("window_seconds", "s", _of_runs(lambda s: s.seconds)),
        Figure("devices", "devices", _devices),
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
"""All figures by name: that of their column, where stored runs have one."""

SHORT_NAMES = {
    "step_seconds": "median_step_seconds",
    "peak_memory": "peak_memory_bytes",
    "peak_nvml": "peak_nvml_bytes",
}
"""Other names that are accepted."""

STATED = {
    "tokens_per_second": "tokens_per_second",
    "tokens_per_second_per_device": "tokens_per_second_per_device",
    "samples_per_second": "samples_per_second",
    "steps_per_second": "steps_per_second",
    "mean_loss": "mean_loss",
    "epochs": "epochs",
}
"""Figures that imported rows state, by the name of their metric; no other is shown of them."""


def stated_figure(row: ExperimentRuns, name: str) -> float | None:
    """Return a figure of an imported experiment as its file states it, the mean over its rows."""
    metrics = (one for run in row.counted.values() for one in run.metrics)
    values = [one.value for one in metrics if one.name == STATED.get(name)]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

"""Figures of runs, such as tokens per second, that are compared over time or with a reference.

Names and columns are the same as in `results pivot`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal, TypeAlias

from accel_bench.analysis.checks.audit import audit_failures
from accel_bench.analysis.metrics.offered_load import MEDIAN_LATENCY
from accel_bench.analysis.quantity import (
    QUANTITIES,
    SHORT_NAMES,
    SPEED,
    Quantity,
    compared_name,
    run_figures,
)
from accel_bench.analysis.statistics.estimators import Interval, geometric_interval
from accel_bench.analysis.tables.listing import metrics_by_name
from accel_bench.errors import StoreError, did_you_mean
from accel_bench.result import Result

Change: TypeAlias = Literal["better", "worse", "different"]


COLUMN_FIGURES = {
    name: Quantity(name=name, unit=unit, better=better)
    for name, (unit, better) in QUANTITIES.items()
}
"""Figures that are columns of the store, by name."""

TOKENS_PER_SECOND = COLUMN_FIGURES[SPEED]

REQUEST_LATENCY = COLUMN_FIGURES[MEDIAN_LATENCY]
"""Median request latency of the slowest rank."""

METRICS = "metrics."
"""Prefix of the names of plugins' metrics in conditions on stored runs."""


def change_of(figure: Quantity, log_ratio: float) -> Change:
    """Return `better`, `worse` or `different` for a change of a figure; `log_ratio` is log(new /
    old)."""
    if figure.better == "neither":
        return "different"
    return "better" if (log_ratio > 0) == (figure.better == "higher") else "worse"


def compared_figure(figure: Quantity, rate: float | None) -> Quantity:
    """Return the figure to compare in place of `figure`, given the arrival rate of requests.

    With a `rate`, the request latency replaces a figure computed from busy time, such as
    throughput. Otherwise the result is `figure` itself.
    """
    return COLUMN_FIGURES.get(compared_name(figure.name, rate), figure)


def figure_named(name: str, results: Iterable[Result] = ()) -> Quantity:
    """Return the figure called `name`, with its unit and better direction.

    A name `metrics.NAME` is a plugin's metric in one of the `results`. Raises StoreError for an
    unknown name.
    """
    name = SHORT_NAMES.get(name, name)
    if name in COLUMN_FIGURES:
        return COLUMN_FIGURES[name]
    known = {metric: figure for result in results for metric, figure in metrics_of(result).items()}
    if name not in known:
        hint = did_you_mean(name, {*COLUMN_FIGURES, *known})
        raise StoreError(f"no run has a figure {name!r}{hint}")
    return known[name]


def metrics_of(result: Result) -> dict[str, Quantity]:
    """Return the metrics that plugins measured in a run, by their names with prefix `metrics.`."""
    return {
        f"{METRICS}{name}": Quantity(
            name=f"{METRICS}{name}", unit=metric.unit, better=metric.better
        )
        for name, metric in metrics_by_name(result).items()
    }


def figures_of(result: Result) -> dict[str, float]:
    """Return a run's values by figure name, with metrics of plugins. The dict is empty for an
    imported run, and for a run that did not complete or failed its self-audit."""
    if not result.status.completed or result.imported or audit_failures(result):
        return {}
    figures = run_figures(result)
    figures |= {
        f"{METRICS}{name}": metric.value for name, metric in metrics_by_name(result).items()
    }
    return {name: float(value) for name, value in figures.items() if value is not None}


def figure_interval(values: Sequence[float]) -> Interval | None:
    """Return the median of values, with a 95 % interval if all are positive. Return None if there
    are no values."""
    if not values or min(values) > 0:
        return geometric_interval(values)
    return Interval(median=median(values), low=None, high=None)

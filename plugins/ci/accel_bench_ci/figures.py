"""Figures of a run that are compared over time or with a reference, with their better direction.

Names and columns are those of `results pivot`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal, NamedTuple, TypeAlias

from accel_bench.analysis.checks.audit import disowning
from accel_bench.analysis.metrics.offered_load import MEDIAN_LATENCY, largest_metric
from accel_bench.analysis.statistics.estimators import Interval, geometric_interval
from accel_bench.analysis.tables.figures import FIGURES, SHORT_NAMES
from accel_bench.analysis.tables.listing import flat_figures, metrics_by_name
from accel_bench.analysis.tables.points import Better
from accel_bench.analysis.wording import significant
from accel_bench.errors import StoreError, did_you_mean
from accel_bench.result import Result

Change: TypeAlias = Literal["better", "worse", "different"]


class TrackedFigure(NamedTuple):
    """A figure, its unit, and the better of two values."""

    name: str
    unit: str
    better: Better

    def change(self, log_ratio: float) -> Change:
        """Return `better`, `worse` or `different` for a change, given log(new / old)."""
        if self.better == "neither":
            return "different"
        return "better" if (log_ratio > 0) == (self.better == "higher") else "worse"


COLUMNS = (
    *("tokens_per_second", "tokens_per_second_per_device", "tokens_per_hour"),
    *("samples_per_second", "steps_per_second", "median_step_seconds", "mfu"),
    *("peak_memory_bytes", "first_loss", "last_loss", MEDIAN_LATENCY),
)
"""Figures of a pivot that derive from stored columns, and the request latency."""

UNITS = {
    "median_step_seconds": "seconds",
    "peak_memory_bytes": "bytes",
    "first_loss": "nats/token",
    "last_loss": "nats/token",
}
"""Units of figures, if no table states the unit with its scope."""

COLUMN_FIGURES = {
    name: TrackedFigure(name, UNITS.get(name, FIGURES[name].unit), FIGURES[name].better)
    for name in COLUMNS
}
"""Figures of stored columns by name."""

TOKENS_PER_SECOND = COLUMN_FIGURES["tokens_per_second"]

REQUEST_LATENCY = COLUMN_FIGURES[MEDIAN_LATENCY]
"""Median request latency of the slowest rank."""

OF_BUSY_TIME = {
    *("tokens_per_second", "tokens_per_second_per_device", "tokens_per_hour", "mfu"),
    *("samples_per_second", "steps_per_second", "median_step_seconds"),
}
"""Figures of busy time, which do not describe the latency of requests that arrive at a rate."""

METRICS = "metrics."
"""Prefix of plugins' metrics in conditions on stored runs."""


def compared_figure(figure: TrackedFigure, rate: float | None) -> TrackedFigure:
    """Return the figure to compare: for requests that arrive at a rate, latency replaces figures of
    busy time."""
    return REQUEST_LATENCY if rate is not None and figure.name in OF_BUSY_TIME else figure


def figure_named(name: str, results: Iterable[Result] = ()) -> TrackedFigure:
    """Return the figure of a name; `metrics.NAME` is a plugin's metric.

    Raises StoreError for an unknown name.
    """
    name = SHORT_NAMES.get(name, name)
    if name in COLUMN_FIGURES:
        return COLUMN_FIGURES[name]
    known = {one: figure for result in results for one, figure in metrics_of(result).items()}
    if name not in known:
        hint = did_you_mean(name, {*COLUMN_FIGURES, *known})
        raise StoreError(f"no run has a figure {name!r}{hint}")
    return known[name]


def metrics_of(result: Result) -> dict[str, TrackedFigure]:
    """Return a result's metrics as figures, by name."""
    return {
        f"{METRICS}{name}": TrackedFigure(f"{METRICS}{name}", metric.unit, metric.better)
        for name, metric in metrics_by_name(result).items()
    }


def figures_of(result: Result) -> dict[str, float]:
    """Return the figures of a completed run that passed its self-audit."""
    if not result.status.completed or result.imported or disowning(result):
        return {}
    peaks = [
        one.value for rank in result.ranks for one in rank.metrics if one.figure == "peak_memory"
    ]
    known = flat_figures(result)
    known["peak_memory_bytes"] = max((one for one in peaks if one is not None), default=None)
    known[MEDIAN_LATENCY] = largest_metric(result, MEDIAN_LATENCY)
    found = {name: known.get(name) for name in COLUMN_FIGURES}
    found |= {f"{METRICS}{name}": one.value for name, one in metrics_by_name(result).items()}
    return {name: float(value) for name, value in found.items() if value is not None}


def figure_interval(values: Sequence[float]) -> Interval | None:
    """Return the interval of positive values, of others their median; None without values."""
    if not values or min(values) > 0:
        return geometric_interval(values)
    return Interval(median=median(values), low=None, high=None)


def figure_text(value: float) -> str:
    """Return a figure as text with four significant digits, or as a large integer."""
    return significant(value, 4) if abs(value) < 1e4 else f"{value:,.0f}"

"""Metrics of plugins named in a scenario, reduced over ranks and runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Literal

from pydantic import Field

from accel_bench.analysis.learning.curves import CORE, learning_metrics
from accel_bench.analysis.metrics.offered_load import engine_of
from accel_bench.documents.base import Frozen
from accel_bench.result import Metric, Result
from accel_bench.scenario.uses import slot_defaults

MINIMUM_ROUNDS = 2
"""Minimum number of paired rounds to call a value better or worse."""

MetricKey = tuple[str, str, str]
"""Identity of a metric: plugin, name and unit."""


class MetricFigure(Frozen):
    """A metric of a plugin, over the runs of an experiment."""

    name: str
    """Name, with the kind of measurement if there are several."""

    plugin: str
    """Name of the plugin that measured it."""

    unit: str
    """Unit of the metric: `bytes`, `seconds`, `1` ..."""

    better: Literal["lower", "higher", "neither"]
    """Better direction, higher or lower."""

    value: float | None
    """Median over runs of the worst rank's value, or of the ranks' mean if no direction is better;
    null if no run has a number."""

    reason: str = ""
    """Reason for a missing number, or a problem with it."""

    by_round: dict[tuple[str, int], float] = Field(default_factory=dict, exclude=True)
    """Value of each run with a number, by session and round."""

    @property
    def key(self) -> MetricKey:
        """Identity of the metric across experiments."""
        return self.plugin, self.name, self.unit

    @property
    def label(self) -> str:
        """Label of the metric: name, unit and better direction."""
        unit = "" if self.unit == "1" or self.unit in self.name else f" [{self.unit}]"
        return f"{self.name}{unit}" + (
            "" if self.better == "neither" else f", {self.better} is better"
        )

    def against(self, base: MetricFigure | None) -> str:
        """Return the ratio to `base` in words: `0.85 times, better`; empty if a value is missing.

        The ratio is left out if a value is not positive.
        """
        if base is None or self.value is None or base.value is None:
            return ""
        positive = self.value > 0 and base.value > 0
        times = f"{self.value / base.value:.2f} times" if positive else ""
        return ", ".join(filter(None, (times, self._direction(base))))

    def _direction(self, base: MetricFigure) -> str:
        """Return `better` or `worse` if two or more paired rounds all agree, else an empty text."""
        paired = self.by_round.keys() & base.by_round.keys()
        if self.better == "neither" or len(paired) < MINIMUM_ROUNDS:
            return ""
        lower = {self.by_round[key] < base.by_round[key] for key in paired}
        equal = any(self.by_round[key] == base.by_round[key] for key in paired)
        if equal or len(lower) > 1:
            return ""
        return "better" if lower == {self.better == "lower"} else "worse"


def named_metrics(runs: Sequence[Result]) -> tuple[MetricFigure, ...]:
    """Return the metrics of the engine and of metrics plugins.

    Metrics with a known `figure` are excluded, since they are shown elsewhere.
    """
    return _figures(runs, _metrics)


def every_metric(runs: Sequence[Result]) -> tuple[MetricFigure, ...]:
    """Return the metrics of all plugins, whether a scenario names them or not."""
    return _figures(runs, _all_metrics)


def _all_metrics(run: Result) -> Iterator[Metric]:
    for rank in run.ranks:
        yield from rank.metrics
    yield from run.metrics
    yield from learning_metrics(run)


def labels(metrics: Iterable[MetricFigure]) -> dict[MetricKey, str]:
    """Return the label of each metric, with its plugin if labels are equal."""
    by_key = {metric.key: metric.label for metric in metrics}
    count = Counter(by_key.values())
    return {
        key: f"{label} ({key[0]})" if count[label] > 1 else label for key, label in by_key.items()
    }


def _metrics(run: Result) -> Iterator[Metric]:
    """Yield a run's metrics of its engine and of plugins that its scenario names as metrics."""
    usual = {*slot_defaults().metrics, *slot_defaults().gpu_metrics}
    named = {use.use for use in run.experiment.scenario.metrics} - usual | {engine_of(run), CORE}
    for metric in _all_metrics(run):
        if metric.figure is None and metric.plugin in named:
            yield metric


def _figures(
    runs: Sequence[Result], metrics: Callable[[Result], Iterable[Metric]]
) -> tuple[MetricFigure, ...]:
    """Return each metric that `metrics` yields for a run, reduced over ranks and then over runs."""
    groups: dict[tuple[str, ...], dict[tuple[str, int], list[Metric]]] = {}
    for run in runs:
        for metric in metrics(run):
            rounds = groups.setdefault((metric.plugin, metric.name, metric.kind, metric.unit), {})
            rounds.setdefault((run.session, run.round), []).append(metric)
    return tuple(map(_figure, groups.values()))


def _figure(rounds: Mapping[tuple[str, int], Sequence[Metric]]) -> MetricFigure:
    """Return one metric over ranks and runs, from its values of all ranks by session and round."""
    metrics = [metric for run in rounds.values() for metric in run]
    first = metrics[0]
    known = {key: [m.value for m in run if m.value is not None] for key, run in rounds.items()}
    by_round = {key: _over_ranks(values, first.better) for key, values in known.items() if values}
    return MetricFigure(
        name=" ".join(filter(None, (first.name, first.kind))),
        plugin=first.plugin,
        unit=first.unit,
        better=first.better,
        value=median(by_round.values()) if by_round else None,
        reason=next((metric.reason for metric in metrics if metric.reason), ""),
        by_round=by_round,
    )


def _over_ranks(values: Sequence[float], better: str) -> float:
    if better == "neither":
        return fmean(values)
    return max(values) if better == "lower" else min(values)

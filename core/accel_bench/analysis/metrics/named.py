"""Metrics of plugins that a scenario names: one figure of each, over ranks and runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean, median
from typing import Literal

from accel_bench.documents.base import Frozen
from accel_bench.result import Metric, Result
from accel_bench.scenario.uses import slot_defaults

MetricKey = tuple[str, str, str]
"""Plugin, name and unit: figures that share them are of one metric."""


class MetricFigure(Frozen):
    """What a plugin of `metrics` measured of an experiment."""

    name: str
    """Name, and how it was measured where there is more than one way."""

    plugin: str
    """Plugin that measured it."""

    unit: str
    """`bytes`, `seconds`, `1` ..."""

    better: Literal["lower", "higher", "neither"]
    """Which of two values is the better one."""

    value: float | None
    """Median over runs of the worst rank's value, of the ranks' mean where neither is better; null
    when no run has a number."""

    reason: str = ""
    """Why there is no number, or what is wrong with it."""

    @property
    def key(self) -> MetricKey:
        """Which metric this is, in any experiment."""
        return self.plugin, self.name, self.unit

    @property
    def label(self) -> str:
        """Name and unit, and which value is better."""
        unit = "" if self.unit == "1" or self.unit in self.name else f" [{self.unit}]"
        return f"{self.name}{unit}" + (
            "" if self.better == "neither" else f", {self.better} is better"
        )

    def against(self, base: MetricFigure | None) -> str:
        """Return `0.85 times, better`; empty where there is nothing to compare with."""
        if base is None or self.value is None or not base.value:
            return ""
        times = f"{self.value / base.value:.2f} times"
        if self.better == "neither" or self.value == base.value:
            return times
        good = (self.value < base.value) == (self.better == "lower")
        return f"{times}, {'better' if good else 'worse'}"


def named_metrics(runs: Sequence[Result]) -> tuple[MetricFigure, ...]:
    """Return a figure of each metric of the plugins that the scenario names beside the usual ones.

    Those that analysis knows by their `figure` have places of their own.
    """
    found: dict[tuple[str, ...], list[list[Metric]]] = {}
    for run in runs:
        of_run: dict[tuple[str, ...], list[Metric]] = {}
        for one in _metrics(run):
            of_run.setdefault((one.plugin, one.name, one.kind, one.unit), []).append(one)
        for key, metrics in of_run.items():
            found.setdefault(key, []).append(metrics)
    return tuple(map(_figure, found.values()))


def labels(metrics: Iterable[MetricFigure]) -> dict[MetricKey, str]:
    """Return the label of each metric, with its plugin where that of another plugin is equal."""
    by_key = {one.key: one.label for one in metrics}
    count = Counter(by_key.values())
    return {
        key: f"{label} ({key[0]})" if count[label] > 1 else label for key, label in by_key.items()
    }


def _metrics(run: Result) -> Iterator[Metric]:
    """Yield the metrics of a run's ranks and observers that belong here."""
    usual = {*slot_defaults().metrics, *slot_defaults().gpu_metrics}
    named = {use.use for use in run.experiment.scenario.metrics} - usual
    for metric in (*(one for rank in run.ranks for one in rank.metrics), *run.metrics):
        if metric.figure is None and metric.plugin in named:
            yield metric


def _figure(runs: Sequence[Sequence[Metric]]) -> MetricFigure:
    """Return one metric over ranks, then over runs."""
    first = runs[0][0]
    known = [[one.value for one in run if one.value is not None] for run in runs]
    values = [_over_ranks(values, first.better) for values in known if values]
    reasons = (one.reason for run in runs for one in run if one.reason)
    return MetricFigure(
        name=" ".join(filter(None, (first.name, first.kind))),
        plugin=first.plugin,
        unit=first.unit,
        better=first.better,
        value=median(values) if values else None,
        reason=next(reasons, ""),
    )


def _over_ranks(values: Sequence[float], better: str) -> float:
    """Return the worst rank's value; the mean where no value is better than another."""
    if better == "neither":
        return fmean(values)
    return max(values) if better == "lower" else min(values)

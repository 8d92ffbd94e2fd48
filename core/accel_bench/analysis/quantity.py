"""Compared quantity of an experiment: name, unit, better direction, and values by round.

By default it is the speed, or at an arrival rate the latency of the median request.
`measure.compare` names another one: a figure of a run, or a plugin's metric with a better
direction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, TypeAlias

from pydantic import Field

from accel_bench.analysis.metrics.memory import peak_memory
from accel_bench.analysis.metrics.offered_load import (
    MEDIAN_LATENCY,
    NO_LATENCY,
    largest_metric,
    offered_rate,
)
from accel_bench.analysis.metrics.plugin_metrics import every_metric
from accel_bench.analysis.metrics.throughput import RunThroughput
from accel_bench.analysis.statistics.estimators import Interval, geometric_interval
from accel_bench.analysis.statistics.verdict import OF_ANY, OF_SPEED, QuantityWords, RoundKey
from accel_bench.analysis.tables.listing import flat_figures, flat_speed
from accel_bench.analysis.wording import join_names
from accel_bench.documents.base import Frozen
from accel_bench.errors import did_you_mean
from accel_bench.result import Result
from accel_bench.scenario.models import Scenario

Better: TypeAlias = Literal["higher", "lower", "neither"]
"""Better direction of a figure."""

SPEED = "tokens_per_second"
"""Name of the default quantity, the speed."""

QUANTITIES: Mapping[str, tuple[str, Better]] = {
    SPEED: ("tokens/s", "higher"),
    "tokens_per_second_per_device": ("tokens/s per device", "higher"),
    "tokens_per_hour": ("tokens/h", "higher"),
    "samples_per_second": ("samples/s", "higher"),
    "steps_per_second": ("steps/s", "higher"),
    "median_step_seconds": ("s", "lower"),
    "mfu": ("of peak", "higher"),
    "peak_memory_bytes": ("bytes per device", "lower"),
    "first_loss": ("nats/token", "neither"),
    "last_loss": ("nats/token", "lower"),
    MEDIAN_LATENCY: ("ms", "lower"),
}
"""Unit and better direction of a run's figures, by name."""

SHORT_NAMES = {
    "step_seconds": "median_step_seconds",
    "peak_memory": "peak_memory_bytes",
    "peak_nvml": "peak_nvml_bytes",
}
"""Accepted aliases of figures' names."""

OF_BUSY_TIME = frozenset(
    {"mfu", "median_step_seconds", *(name for name in QUANTITIES if "_per_" in name)}
)
"""Figures of busy time, which do not describe the latency at an arrival rate."""


class Quantity(Frozen):
    """Quantity by which experiments are compared."""

    name: str = SPEED
    """Name of the figure or metric."""

    unit: str = "tokens/s"

    better: Better = "higher"
    """Better direction of the quantity."""

    value: Interval | None = None
    """Median over runs with its 95 % interval; null without a positive value."""

    obstacle: str = ""
    """Reason why the quantity cannot be compared at all; empty if it can."""

    costs: dict[RoundKey, float] = Field(default_factory=dict, exclude=True)
    """Costs of completed runs by round: the value if less is better, else its inverse."""

    @property
    def without_costs(self) -> Quantity:
        """Copy without the values that are compared by round (`costs`), for a document."""
        return self.model_copy(update={"costs": {}})

    @property
    def usual(self) -> bool:
        """True for a default quantity: the speed, or the latency at an arrival rate."""
        return self.name in (SPEED, MEDIAN_LATENCY)

    @property
    def of_speed(self) -> bool:
        """True for a speed or a latency, for which verdicts are `faster` and `slower`."""
        return self.name in OF_BUSY_TIME - {"mfu"} or self.usual

    @property
    def moved_by_load(self) -> bool:
        """True if other programs on the host can change the quantity, unlike bytes and losses."""
        return not self.unit.startswith(("bytes", "nats"))

    @property
    def words(self) -> QuantityWords:
        """Words for the quantity's ratio and verdicts."""
        return OF_SPEED if self.of_speed else OF_ANY

    @property
    def by(self) -> str:
        """Text on the quantity of a ratio: `, by NAME (less is better)`; empty for the speed."""
        if self.name == MEDIAN_LATENCY:
            return ", by the latency of the median request"
        more = "less" if self.better == "lower" else "more"
        return "" if self.usual else f", by {self.name} ({more} is better)"


def compared_name(name: str, rate: float | None) -> str:
    """Return `name`, or MEDIAN_LATENCY for a name in OF_BUSY_TIME if requests arrive at a
    `rate`."""
    return MEDIAN_LATENCY if rate is not None and name in OF_BUSY_TIME else name


def compared_quantity(
    scenario: Scenario, runs: Mapping[RoundKey, Result], speeds: Mapping[RoundKey, RunThroughput]
) -> Quantity:
    """Return the compared quantity of an experiment, from its completed runs by round."""
    name = compared_name(scenario.measure.compare or SPEED, offered_rate(scenario))
    if name not in QUANTITIES:
        return _of_metric(name, runs)
    unit, better = QUANTITIES[name]
    if name == SPEED:
        value = geometric_interval([speed.tokens_per_second for speed in speeds.values()])
        costs = {key: speed.seconds_per_token for key, speed in speeds.items()}
        return Quantity(name=name, unit=unit, better=better, value=value, costs=costs)
    values = {key: run_figures(runs[key], speed)[name] for key, speed in speeds.items()}
    return _quantity(name, unit, better, {k: v for k, v in values.items() if v is not None})


def compared_by(run: Result, name: str | None) -> Result:
    """Return `run` with `name` as the quantity that its scenario compares; None is the default."""
    scenario = run.experiment.scenario
    if scenario.measure.compare == name:
        return run
    measure = scenario.measure.model_copy(update={"compare": name})
    scenario = scenario.model_copy(update={"measure": measure})
    experiment = run.experiment.model_copy(update={"scenario": scenario})
    return run.model_copy(update={"experiment": experiment})


def run_figures(run: Result, speed: RunThroughput | None = None) -> dict[str, float | None]:
    """Return a completed run's values of all QUANTITIES by name; None for an unmeasured one.

    `speed` is needed for a run that was stripped of its window for tables.
    """
    known = flat_figures(run) | flat_speed(speed)
    known["peak_memory_bytes"] = peak_memory([run])[0]
    known[MEDIAN_LATENCY] = largest_metric(run, MEDIAN_LATENCY)
    return {name: known.get(name) for name in QUANTITIES}


def _of_metric(name: str, runs: Mapping[RoundKey, Result]) -> Quantity:
    """Return the plugin metric `name` as a quantity; `obstacle` says if none or several match."""
    known = {f"{m.plugin}.{m.name}": m for m in every_metric(list(runs.values()))}
    matches = {full: metric for full, metric in known.items() if name in (full, metric.name)}
    if not matches:  # Of one kind of measurement, which need not be named.
        matches = {k: v for k, v in known.items() if name in (_kindless(k), _kindless(v.name))}
    if len(matches) == 1:
        (metric,) = matches.values()
        kind = metric.name.removeprefix(_kindless(metric.name))
        name = name if name.endswith(kind) else f"{name}{kind}"
        return _quantity(name, metric.unit, metric.better, metric.by_round, metric.reason)
    if matches:
        obstacle = f"{name} is {join_names([*matches])}: name one of them"
    else:
        names = {*QUANTITIES, *known, *(metric.name for metric in known.values())}
        obstacle = f"no completed run has {name}{did_you_mean(name, names)}"
    return Quantity(name=name, unit="", better="neither", obstacle=obstacle)


def _kindless(metric: str) -> str:
    return metric.partition(" ")[0]


def _quantity(
    name: str, unit: str, better: Better, values: Mapping[RoundKey, float], reason: str = ""
) -> Quantity:
    """Return a quantity from its values by round; `reason` says why there are no values."""
    positive = {k: v for k, v in values.items() if v > 0 and math.isfinite(v)}
    whole = len(positive) == len(values)
    missing = NO_LATENCY if name == MEDIAN_LATENCY else f"no completed run has {name}"
    obstacles = {
        f"{missing}{f': {reason}' if reason else ''}": not values,
        f"{name} states no better direction": better == "neither",
        f"{name} is not positive in every run, so that it has no ratio": not whole,
    }
    return Quantity(
        name=name,
        unit=unit,
        better=better,
        value=geometric_interval(list(positive.values())) if whole else None,
        obstacle=next((text for text, holds in obstacles.items() if holds), ""),
        costs={key: v if better == "lower" else 1 / v for key, v in positive.items()},
    )


def quantity_obstacle(base: Quantity, row: Quantity) -> str:
    """Return the reason why two quantities cannot be compared, or an empty text if they can."""
    if base.name != row.name:
        return f"one is compared by {base.name}, the other one by {row.name} (measure.compare)"
    if obstacle := base.obstacle or row.obstacle:
        return obstacle
    if base.unit != row.unit:
        return f"{row.name} has the units {base.unit} and {row.unit}"
    if base.better != row.better:
        return f"of {row.name} one calls the {base.better} value better, the other the {row.better}"
    return ""

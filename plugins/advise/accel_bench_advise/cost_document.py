"""What every experiment costs: the rows of `results cost`."""

from __future__ import annotations

from collections.abc import Sequence

from accel_bench.analysis.aggregate import ExperimentRuns
from accel_bench.analysis.metrics.cost import (
    EXCLUDED,
    HourlyRate,
    Terms,
    cost_notes,
    machines_paid,
)
from accel_bench.analysis.metrics.utilization import devices_used
from accel_bench.analysis.schema import Document, ExperimentRow
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.tables.experiment_keys import tell_apart
from accel_bench.analysis.tables.figures import FIGURES, paid_speed
from accel_bench.documents.base import Frozen

FACTORS = (0.5, 1.0, 2.0)
"""How far throughput or price might be off in a sensitivity."""


class Sensitivity(Frozen):
    """Dollars per million tokens if one of the two figures were off by a factor."""

    factor: float
    """The factor; 1 is what was measured."""

    throughput: float
    """Cost if the throughput were that many times what was measured."""

    price: float
    """Cost if the price were that many times what it is."""


class ExperimentCost(ExperimentRow):
    """What one experiment costs."""

    scenario: str
    """Name of the scenario."""

    device: str | None
    """Device that the runs used, as it names itself."""

    devices_used: int | None
    """Distinct devices that ranks really used; on a CPU the number of ranks."""

    instances: int
    """Machines that are paid for."""

    usd_per_hour: float
    """Dollars for an hour of all of them."""

    usd_per_million_tokens: Interval | None
    """Cost per million real tokens; the interval is that of the throughput, the price is exact."""

    usd_for_tokens: Interval | None
    """Cost of as many tokens as were given; null when none were."""

    sensitivity: tuple[Sensitivity, ...]
    """Cost per million tokens if throughput or price were off; empty without a cost."""

    notes: tuple[str, ...]
    """What one must know about this cost, a sentence each."""


class CostDocument(Document):
    """What `accel-bench results cost --format json` prints."""

    tariff: HourlyRate
    """The price."""

    for_tokens: float | None
    """Tokens to train on; null where none were given."""

    excluded: str = EXCLUDED
    """What no cost here contains."""

    experiments: tuple[ExperimentCost, ...]
    """A row for each experiment, in the order of their first runs."""


def sensitivity(usd_per_million: float) -> tuple[Sensitivity, ...]:
    """Return the cost with throughput or price halved, as they are, and doubled."""
    return tuple(
        Sensitivity(factor=f, throughput=usd_per_million / f, price=usd_per_million * f)
        for f in FACTORS
    )


def cost_of_experiments(
    experiments: Sequence[ExperimentRuns],
    tariff: HourlyRate,
    for_tokens: float | None = None,
    instances: int | None = None,
) -> CostDocument:
    """Compute the cost of every experiment.

    `instances` is how many machines were used, where that is known better than from the devices.
    """
    rows = tuple(_row(row, tariff, for_tokens, instances) for row in tell_apart(experiments))
    return CostDocument(tariff=tariff, for_tokens=for_tokens, experiments=rows)


def _row(
    measured: ExperimentRuns, tariff: HourlyRate, for_tokens: float | None, instances: int | None
) -> ExperimentCost:
    experiment, last = measured.planned.experiment, measured.last
    used = devices_used(last)
    device = last.ranks[0].device if last and last.ranks else None
    machines = machines_paid(measured, tariff, instances)
    terms = Terms(rate=tariff, tokens=for_tokens, instances=instances)
    cost = FIGURES["dollars_per_million_tokens"].compute(measured, terms)
    return ExperimentCost(
        experiment_id=experiment.id,
        scenario=experiment.scenario.name,
        stack=experiment.stack.name,
        sweep=experiment.sweep,
        apart=dict(measured.apart),
        status=measured.ending.status,
        runs=len(measured.speeds),
        counts=experiment.scenario.counts,
        device=device.name or None if device else None,
        devices_used=used,
        instances=machines,
        usd_per_hour=tariff.usd_per_hour * machines,
        tokens_per_second=paid_speed(measured),
        usd_per_million_tokens=cost,
        usd_for_tokens=FIGURES["dollars"].compute(measured, terms),
        sensitivity=sensitivity(cost.median) if cost else (),
        notes=tuple(cost_notes(measured, tariff, instances)),
    )

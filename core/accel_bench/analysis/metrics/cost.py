"""What training costs: measured throughput times the price of the machines. Pure arithmetic.

Cost per million tokens = dollars per hour x instances / (tokens per second x 3600 / 1e6), for the
measured window alone: starting up, compiling, loading and writing checkpoints come on top. Tokens
are real ones, without padding, of all devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import date as Date

from accel_bench.analysis.aggregate import ExperimentRuns
from accel_bench.analysis.metrics.rate import HourlyRate
from accel_bench.analysis.metrics.utilization import devices_used
from accel_bench.analysis.schema import Document, ExperimentRow
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.tables.experiment_keys import tell_apart
from accel_bench.catalog.hardware import find_hardware, list_hardware
from accel_bench.catalog.prices import Price
from accel_bench.documents.base import Frozen
from accel_bench.machine.info import Device

FACTORS = (0.5, 1.0, 2.0)
"""How far throughput or price might be off in a sensitivity."""

EXCLUDED = (
    "the measured window alone; start-up, model loading, compilation and checkpointing are not in "
    "the cost"
)
"""What every cost here leaves out."""


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


def usd_per_million_tokens(usd_per_hour: float, instances: int, tokens_per_second: float) -> float:
    """Return dollars for a million tokens of all devices; all arguments are positive."""
    return usd_per_hour * instances / (tokens_per_second * 3600 / 1e6)


def usd_for_tokens(usd_per_million: float, tokens: float) -> float:
    """Return dollars for that many tokens, such as one epoch of a data set."""
    return usd_per_million * tokens / 1e6


def sensitivity(usd_per_million: float) -> tuple[Sensitivity, ...]:
    """Return the cost with throughput or price halved, as they are, and doubled."""
    return tuple(
        Sensitivity(factor=f, throughput=usd_per_million / f, price=usd_per_million * f)
        for f in FACTORS
    )


def table_tariff(price: Price, today: Date, spot: bool = False) -> HourlyRate | None:
    """Return a row of the price table as a rate; None for a spot price that it does not have."""
    usd = price.spot_usd_per_hour if spot else price.usd_per_hour
    if usd is None:
        return None
    same = price.model_dump(exclude={"usd_per_hour", "spot_usd_per_hour"})
    return HourlyRate(
        **same,
        usd_per_hour=usd,
        kind="spot" if spot else "on demand",
        age_days=price.age_days(today),
        stale=price.is_stale(today),
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


def instances_needed(devices: int, nodes: int, devices_per_instance: int | None) -> int:
    """Return the whole machines that hold so many devices: idle devices are paid for too.

    Without devices per machine it is one for each node.
    """
    if devices_per_instance is None:
        return nodes
    return max(nodes, math.ceil(devices / devices_per_instance))


def same_device(device_name: str, priced: str) -> bool | None:
    """Return whether a device as it names itself is the one of a price; None when unknown.

    Prices name a device by the table's short name or, in other catalogs, by a name that several
    devices share.
    """
    row = find_hardware(device_name)
    known = {name: {name, *one.also_called} for name, one in list_hardware().items()}
    if row is None or not any(priced in names for names in known.values()):
        return None
    return priced in known[row.name]


def _row(
    measured: ExperimentRuns, tariff: HourlyRate, for_tokens: float | None, instances: int | None
) -> ExperimentCost:
    experiment, last = measured.planned.experiment, measured.last
    used = devices_used(last)
    device = last.ranks[0].device if last and last.ranks else None
    machines = machines_paid(measured, tariff, instances)
    unpriced = experiment.scenario.calls_alone or at_a_rate(measured)
    speed = None if unpriced else measured.tokens_per_second
    cost = speed and speed.mapped(
        lambda rate: usd_per_million_tokens(tariff.usd_per_hour, machines, rate)
    )
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
        tokens_per_second=speed,
        usd_per_million_tokens=cost,
        usd_for_tokens=cost.mapped(lambda usd: usd_for_tokens(usd, for_tokens))
        if cost and for_tokens
        else None,
        sensitivity=sensitivity(cost.median) if cost else (),
        notes=tuple(cost_notes(measured, tariff, instances)),
    )


def hourly_usd(measured: ExperimentRuns, tariff: HourlyRate, instances: int | None) -> float:
    """Return the dollars for an hour of all machines of an experiment."""
    return tariff.usd_per_hour * machines_paid(measured, tariff, instances)


def machines_paid(measured: ExperimentRuns, tariff: HourlyRate, instances: int | None) -> int:
    """Return the machines that are paid for: `instances`, else as many as hold the devices."""
    nodes = measured.planned.experiment.scenario.resources.nodes
    return instances or instances_needed(_devices(measured), nodes, tariff.devices)


def at_a_rate(measured: ExperimentRuns) -> bool:
    """Return whether requests arrived at a rate, so that idle time is no part of the speed."""
    scenario = measured.planned.experiment.scenario
    return scenario.generates and scenario.inference.rate is not None


def _devices(measured: ExperimentRuns) -> int:
    return devices_used(measured.last) or measured.planned.experiment.scenario.world_size


def cost_notes(
    measured: ExperimentRuns, tariff: HourlyRate, instances: int | None
) -> Iterator[str]:
    """Yield what makes a cost less certain than it seems."""
    last, devices = measured.last, _devices(measured)
    device = last.ranks[0].device if last and last.ranks else None
    if measured.imported:
        yield f"no cost, since it {measured.imported}"
    elif measured.planned.experiment.scenario.calls_alone:
        yield "no cost, since calls of an operation were counted, and no tokens"
    elif at_a_rate(measured):
        yield (
            "no cost, since requests arrived at a rate: the speed is that of the busy time, and "
            "idle hours are paid for too"
        )
    elif measured.tokens_per_second is None:
        why = "; ".join(measured.ending.reasons) or measured.ending.status.value
        yield f"no cost, since no run completed: {why}"
    if measured.disowned:
        yield f"the speed that this cost is made of {measured.how_it_ended}"
    if tariff.device and device and (doubt := _doubt(device, tariff.device)):
        yield (
            f"the runs used {device.name!r}, the price is for machines with "
            f"{tariff.device}, {doubt}"
        )
    paid = machines_paid(measured, tariff, instances) * (tariff.devices or 0)
    if paid > devices:
        yield f"{paid} devices are paid for and {devices} used"


def _doubt(device: Device, priced: str) -> str:
    """Return why a price may not be for this device; empty where it is."""
    if device.type == "cpu":
        return "which it did not use"
    same = same_device(device.name, priced)
    return {True: "", False: "which is another device", None: "which may be another"}[same]

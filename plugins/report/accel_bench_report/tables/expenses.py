"""Cost of training: measured throughput times the price of the machines.

Cost per million tokens = dollars per hour x instances / (tokens per second x 3600 / 1e6), for the
measured window alone; start-up, compilation, loading and writing checkpoints are not included.
Tokens are real ones, without padding, of all devices.
"""

from __future__ import annotations

from collections.abc import Iterator

from accel_bench.analysis.aggregate import ExperimentRuns
from accel_bench.analysis.metrics.hourly_rate import HourlyRate, instances_needed
from accel_bench.analysis.metrics.utilization import devices_used
from accel_bench.catalog.hardware import find_hardware, list_hardware
from accel_bench.documents.base import Frozen
from accel_bench.machine.info import Device

EXCLUDED = (
    "the measured window alone; start-up, model loading, compilation and checkpointing are not in "
    "the cost"
)
"""Expenses that costs do not include."""


class Terms(Frozen):
    """Price and size of a job, which give its hours and dollars."""

    rate: HourlyRate | None = None
    """Price of a machine; None without dollars."""

    tokens: float | None = None
    """Real tokens of the job; None without hours."""

    instances: int | None = None
    """Number of machines; None to derive it from the devices."""


def usd_per_million_tokens(usd_per_hour: float, instances: int, tokens_per_second: float) -> float:
    """Return dollars per million tokens of all devices; all arguments are positive."""
    return usd_per_hour * instances / (tokens_per_second * 3600 / 1e6)


def same_device(device_name: str, priced: str) -> bool | None:
    """Return whether a full device name and the name `priced`, of a price, mean the same device.

    None if unknown: prices name a device by the table's short name or, in other catalogs, by an
    ambiguous name.
    """
    row = find_hardware(device_name)
    known = {name: {name, *device.also_called} for name, device in list_hardware().items()}
    if row is None or not any(priced in names for names in known.values()):
        return None
    return priced in known[row.name]


def hourly_usd(measured: ExperimentRuns, tariff: HourlyRate, instances: int | None) -> float:
    """Return the dollars per hour of all machines of an experiment.

    `instances` is their number; None derives it from the devices.
    """
    return tariff.usd_per_hour * machines_paid(measured, tariff, instances)


def machines_paid(measured: ExperimentRuns, tariff: HourlyRate, instances: int | None) -> int:
    """Return the number of paid machines: `instances`; if None, as many as the devices need."""
    nodes = measured.planned.experiment.scenario.resources.nodes
    return instances or instances_needed(_devices(measured), nodes, tariff.devices)


def _devices(measured: ExperimentRuns) -> int:
    return devices_used(measured.last) or measured.planned.experiment.scenario.world_size


def cost_notes(
    measured: ExperimentRuns, tariff: HourlyRate, instances: int | None
) -> Iterator[str]:
    """Yield a sentence for each caveat of an experiment's cost.

    `instances` is the number of machines; None derives it from the devices.
    """
    last, devices = measured.last, _devices(measured)
    device = last.ranks[0].device if last and last.ranks else None
    if measured.imported:
        yield f"no cost, since it {measured.imported}"
    elif measured.planned.experiment.scenario.calls_alone:
        yield "no cost, since calls of an operation were counted, and no tokens"
    elif measured.rate is not None:
        yield (
            "no cost, since requests arrived at a rate: the speed is that of the busy time, and "
            "idle hours are paid for too"
        )
    elif measured.tokens_per_second is None:
        why = "; ".join(measured.ending.reasons) or measured.ending.status.value
        yield f"no cost, since no run completed: {why}"
    if measured.failed_audit:
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
    """Return a clause such as `which is another device`; empty if the price is for `device`.

    `priced` is the name of the device that the price is for.
    """
    if device.type == "cpu":
        return "which it did not use"
    same = same_device(device.name, priced)
    return {True: "", False: "which is another device", None: "which may be another"}[same]

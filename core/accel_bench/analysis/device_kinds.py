"""Devices used by runs, and kinds of devices within which runs are comparable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from accel_bench.catalog.hardware import find_hardware
from accel_bench.machine.devices import HOST, computes_on_host
from accel_bench.result import RankResult, Result


def device_models(results: Sequence[Result]) -> tuple[str, ...]:
    """Return the sorted models of all devices of completed runs; a CPU's is its processor name."""
    completed = [run for run in results if run.status.completed]
    return tuple(sorted({_model(rank, run) for run in completed for rank in run.ranks} - {""}))


def device_model(run: Result) -> str:
    """Return the model of a run's first device, or an empty text if it used no device.

    The model of an imported run comes from its file.
    """
    used = (model for rank in run.ranks if (model := _model(rank, run)))
    return run.provenance.machine or next(used, "")


def _model(rank: RankResult, run: Result) -> str:
    device = rank.device
    if device is None:
        return ""
    # A CPU's own name says no more than its type.
    processor = run.machine.processor if device.type == "cpu" and run.machine else ""
    return processor or device.name or device.type


class DeviceKind(NamedTuple):
    """Kind of device within which runs are comparable."""

    name: str
    """Short name in the table of devices, or the device's own name."""

    kind: str
    """Type of the device: `cpu`, or torch's type such as `cuda`."""

    devices: int
    nodes: int

    host: str
    """Name of the machine for a CPU, whose speed depends on it; else empty."""

    @property
    def label(self) -> str:
        """Name of the device kind in tables, with the number of devices and the host."""
        many = f"{self.devices} x " if self.devices > 1 else ""
        where = f" of {self.host}" if self.host else ""
        return f"{many}{self.name}{where}"


def device_of(result: Result) -> DeviceKind | None:
    """Return the device kind of a run; None if no rank reached its device."""
    device = next((rank.device for rank in result.ranks if rank.device), None)
    if device is None:
        return None
    scenario, machine = result.experiment.scenario, result.machine
    sizes = scenario.world_size, scenario.resources.nodes
    if not computes_on_host(device.type):
        known = find_hardware(device.name)
        return DeviceKind(known.name if known else device.name, device.type, *sizes, host="")
    name, host = (machine.processor, machine.host) if machine else (HOST, "")
    return DeviceKind(name, HOST, *sizes, host=host)


def devices_of(results: Sequence[Result]) -> list[DeviceKind]:
    """Return the device kind of each run; for a run that reached no device, that of its session."""
    kinds = [device_of(result) for result in results]
    known = {r.session: kind for r, kind in zip(results, kinds, strict=True) if kind}
    return [
        kind or _unreached_device(result, known.get(result.session))
        for result, kind in zip(results, kinds, strict=True)
    ]


def _unreached_device(result: Result, other: DeviceKind | None) -> DeviceKind:
    """Return the device kind of a run that reached no device, from its session's kind `other`."""
    scenario = result.experiment.scenario
    known = other or DeviceKind("unknown device", scenario.resources.device, 1, 1, "")
    return known._replace(devices=scenario.world_size, nodes=scenario.resources.nodes)

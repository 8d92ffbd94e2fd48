"""Devices that runs used, and on which kinds of them runs may be compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from accel_bench.catalog.hardware import find_hardware
from accel_bench.machine.devices import HOST, computes_on_host
from accel_bench.result import RankResult, Result


def device_models(results: Sequence[Result]) -> tuple[str, ...]:
    """Return the models of the devices that completed runs used, sorted; of a CPU its processor."""
    completed = [run for run in results if run.status.completed]
    return tuple(sorted({_model(rank, run) for run in completed for rank in run.ranks} - {""}))


def device_model(run: Result) -> str:
    """Return the model of the first device that a run used, of an imported one as its file says.

    Empty where it reached none.
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
    """Devices on which runs may be compared with one another."""

    name: str
    """Short name of the table, or what the device calls itself."""

    kind: str
    """`cpu` for the host, else what torch calls such devices."""

    devices: int
    nodes: int

    host: str
    """Of a CPU, whose speed its machine decides; empty for another device."""

    @property
    def label(self) -> str:
        """Name for people."""
        many = f"{self.devices} x " if self.devices > 1 else ""
        where = f" of {self.host}" if self.host else ""
        return f"{many}{self.name}{where}"


def device_of(result: Result) -> DeviceKind | None:
    """Return the devices of a run; None where no rank reached its device."""
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
    """Return the devices of each run: where no rank reached its own, those of its session."""
    found = [device_of(result) for result in results]
    known = {r.session: one for r, one in zip(results, found, strict=True) if one}
    return [
        one or _unseen(result, known.get(result.session))
        for result, one in zip(results, found, strict=True)
    ]


def _unseen(result: Result, other: DeviceKind | None) -> DeviceKind:
    """Return the devices of a run that did not reach them; `other` are those of its session."""
    scenario = result.experiment.scenario
    known = other or DeviceKind("unknown device", scenario.resources.device, 1, 1, "")
    return known._replace(devices=scenario.world_size, nodes=scenario.resources.nodes)

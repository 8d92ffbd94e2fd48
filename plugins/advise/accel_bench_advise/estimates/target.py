"""The device that an estimate is for: one of the table, or this machine's."""

from __future__ import annotations

from typing import Literal, NamedTuple

from accel_bench.analysis.wording import count
from accel_bench.catalog.hardware import NamedHardware, find_hardware
from accel_bench.machine.devices import device_type
from accel_bench.machine.info import GPU, Machine
from accel_bench.scenario.models import Scenario
from accel_bench_advise.estimates.speed import DevicePeaks, cpu_peaks, gpu_peaks

CAPABILITIES = (("fp8", (9, 0)), ("bf16", (8, 0)), ("fp16", (7, 0)))
"""Compute capability that a device of the table has at least, by the dtypes that it computes in."""


class Target(NamedTuple):
    """The device that is estimated for."""

    name: str
    kind: Literal["cpu", "cuda"]
    """Whose operations are simulated: those of the host, or, for all other devices, of CUDA."""

    memory_bytes: int | None
    hardware: NamedHardware | None
    machine: Machine

    def peaks(self, scenario: Scenario) -> DevicePeaks | None:
        """Return the peaks of one device; None for a GPU that is not in the table."""
        if self.kind == "cuda":
            precision = scenario.train.matmul_precision
            return gpu_peaks(self.hardware.hardware, precision) if self.hardware else None
        cores = scenario.resources.threads or self.machine.cores // scenario.resources.devices
        return cpu_peaks(max(1, cores))


def target_of(machine: Machine, chosen: NamedHardware | None) -> Target:
    """Return the device of the table, or that of this machine where none was chosen."""
    if chosen is not None:
        return Target(chosen.name, "cuda", chosen.hardware.memory_bytes, chosen, machine)
    if machine.device == "cuda":
        gpu = machine.gpus[0]
        return Target(gpu.name, "cuda", gpu.memory_bytes, find_hardware(gpu.name), machine)
    device = device_type(machine.device)
    if not device.on_host:
        name = device.find(machine)[0]
        known = find_hardware(name)
        return Target(name, "cuda", known.hardware.memory_bytes if known else None, known, machine)
    name = f"{machine.processor} ({count(machine.cores, 'core')})"
    return Target(name, "cpu", machine.memory_bytes, None, machine)


def machine_with(machine: Machine, chosen: NamedHardware, devices: int) -> Machine:
    """Return this machine as if it had that many of a device, for plans that look at devices."""
    peaks = chosen.hardware.peak_flops
    capability = next((c for dtype, c in CAPABILITIES if getattr(peaks, dtype)), (6, 0))
    gpus = tuple(
        GPU(
            index=index,
            name=chosen.name,
            uuid=f"estimated-{index}",
            memory_bytes=chosen.hardware.memory_bytes,
            compute_capability=capability,
        )
        for index in range(devices)
    )
    torch = machine.versions.get("torch", "").removesuffix("+cpu")
    return machine.model_copy(
        update={"gpus": gpus, "versions": {**machine.versions, "torch": torch}}
    )

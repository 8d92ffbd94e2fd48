"""The device of an estimate, from the table or this machine, with its peaks and price."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from typing import Literal, NamedTuple

from accel_bench.analysis.metrics.hourly_rate import instances_needed
from accel_bench.analysis.wording import count
from accel_bench.catalog.hardware import Hardware, NamedHardware, find_hardware
from accel_bench.machine.devices import device_type
from accel_bench.machine.info import GPU, Machine
from accel_bench.scenario.models import Scenario
from accel_bench_advise.estimates.schema import CostEstimate, SpeedEstimate
from accel_bench_advise.price_table import Price, PriceEntry

CAPABILITIES = (("fp8", (9, 0)), ("bf16", (8, 0)), ("fp16", (7, 0)))
"""Least compute capability of a device with a peak for a dtype, by dtype."""

CORE_FLOPS = 10e9
"""Assumed peak FLOP/s of a CPU core; server cores reach up to four times as much."""

CORE_BYTES = 4e9
"""Assumed memory bandwidth of a CPU core, in bytes per second."""


class Efficiency(NamedTuple):
    """Efficiency of training steps, relative to a device's peaks."""

    flops: float
    """Fraction of the peak FLOP/s."""

    bandwidth: float
    """Fraction of the peak bandwidth."""

    operation_seconds: float
    """Least seconds of an operation, given by its launch."""


GPU_SPAN = Efficiency(0.4, 0.6, 8e-6), Efficiency(0.85, 1.0, 1e-6)
"""Efficiency on GPUs: the worst of published eager runs and the best of fused runs."""

CPU_SPAN = Efficiency(0.7, 0.5, 5e-6), Efficiency(4.0, 4.0, 0.0)
"""Efficiency on CPUs, relative to the assumed peaks of their cores."""

GUESS = "a guess of what a CPU's cores do"
"""Source of the assumed peaks of a CPU."""


class DevicePeaks(NamedTuple):
    """Peak FLOP/s and memory bandwidth of one device."""

    flops: Callable[[str], float | None]
    """Function that returns the peak FLOP/s for operands of a dtype; None if unknown."""

    bytes_per_second: float

    span: tuple[Efficiency, Efficiency]
    """Worst and best efficiency of training steps, relative to the peaks."""

    source: str
    """Source of the peaks."""


def gpu_peaks(hardware: Hardware, matmul_precision: str) -> DevicePeaks:
    """Return the peaks of a GPU in the table of devices.

    `matmul_precision` is the scenario's `train.matmul_precision`.
    """
    return DevicePeaks(
        lambda dtype: hardware.peak(dtype, matmul_precision),
        hardware.memory_bandwidth_bytes_per_second,
        GPU_SPAN,
        "the device's data sheet",
    )


def cpu_peaks(cores: int) -> DevicePeaks:
    """Return the assumed peaks of `cores` CPU cores."""
    return DevicePeaks(lambda dtype: CORE_FLOPS * cores, CORE_BYTES * cores, CPU_SPAN, GUESS)


class Target(NamedTuple):
    """Device that an estimate is for."""

    name: str
    kind: Literal["cpu", "cuda"]
    """Device type whose operations are simulated: `cpu`, or `cuda` for all others."""

    memory_bytes: int | None
    hardware: NamedHardware | None
    machine: Machine

    def peaks(self, scenario: Scenario) -> DevicePeaks | None:
        """Return the peaks of one device; None for a GPU that is missing in the table."""
        if self.kind == "cuda":
            precision = scenario.train.matmul_precision
            return gpu_peaks(self.hardware.hardware, precision) if self.hardware else None
        cores = scenario.resources.threads or self.machine.cores // scenario.resources.devices
        return cpu_peaks(max(1, cores))


def target_of(machine: Machine, chosen: NamedHardware | None) -> Target:
    """Return the device of the estimate: the chosen one of the table, else this machine's."""
    if chosen is not None:
        return Target(chosen.name, "cuda", chosen.hardware.memory_bytes, chosen, machine)
    device = device_type(machine.device)
    if device.on_host:
        name = f"{machine.processor} ({count(machine.cores, 'core')})"
        return Target(name, "cpu", machine.memory_bytes, None, machine)
    name = device.find(machine)[0]
    known = find_hardware(name)
    size = known.hardware.memory_bytes if known else None
    if machine.device == "cuda":
        size = machine.gpus[0].memory_bytes
    return Target(name, "cuda", size, known, machine)


def machine_with(machine: Machine, chosen: NamedHardware, devices: int) -> Machine:
    """Return this machine with `devices` devices of the chosen kind in place of its own."""
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


def estimate_cost(
    scenario: Scenario,
    speed: SpeedEstimate | None,
    hardware: NamedHardware | None,
    prices: Sequence[PriceEntry],
    for_tokens: float | None,
) -> CostEstimate | None:
    """Return the cost of training on the cheapest machines.

    `for_tokens` is the number of tokens to train on, padding included; None if unknown. The result
    is None if no price of the device is known, or if `speed` is None.
    """
    cheapest = hourly_cost(scenario, hardware, prices)
    if speed is None or cheapest is None:
        return None
    usd_per_hour, price = cheapest
    a_million = speed.tokens_per_second.inverted(usd_per_hour * 1e6 / 3600)
    return CostEstimate(
        usd_per_hour=usd_per_hour,
        price=price,
        usd_per_million_tokens=a_million,
        usd=a_million.times(for_tokens / 1e6) if for_tokens else None,
    )


def hourly_cost(
    scenario: Scenario, hardware: NamedHardware | None, prices: Sequence[PriceEntry]
) -> tuple[float, str] | None:
    """Return the dollars per hour of the cheapest machines, and the source of the price.

    The source reads like `2 x aws p4d.24xlarge, on demand, 2026-11-01`. None if `prices` have no
    price of the device, or if `hardware` is None.
    """
    costs, today = [], date.today()
    for price, _ in prices:
        if hardware and is_price_of(price, hardware):
            nodes = scenario.resources.nodes
            machines = instances_needed(scenario.world_size, nodes, price.devices)
            old = f", {count(price.age_days(today), 'day')} old" if price.is_stale(today) else ""
            many = f"{machines} x " if machines > 1 else ""
            whose = f"{many}{price.provider} {price.instance}, on demand, {price.date}{old}"
            costs.append((machines * price.usd_per_hour, whose))
    return min(costs, default=None)


def is_price_of(price: Price, hardware: NamedHardware) -> bool:
    """Return whether a price in the table is for machines with this device."""
    return price.device == hardware.name or hardware.hardware.is_called(price.device)

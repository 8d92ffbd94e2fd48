"""The state of the machine at one moment: clocks, heat, power, errors, processes, load."""

from __future__ import annotations

from collections.abc import Iterable

from accel_bench.documents.base import Frozen

CLOCK_LIMITS = {
    0x001: "gpu_idle",
    0x002: "application_clocks",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}
"""NVML's bits for what limits clocks."""


THROTTLING = ("hw_power_brake", "hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown")
"""Limits that no device should meet in normal work. `sw_power_cap` is not one of them: many boards
reach their cap in every training run, and the cap itself is stored."""


class GPUProcess(Frozen):
    """A process that computes on a device."""

    pid: int
    """Process id, as NVML sees it: inside a container it can be the host's."""

    name: str = ""
    """Name of the program; empty when it is not known here."""

    memory_bytes: int | None = None
    """Bytes that it holds on the device; null when NVML does not say."""


class GPUState(Frozen):
    """The state of one device; null is what the device or its driver does not give."""

    uuid: str
    """What tells it from every other one."""

    sm_clock_megahertz: int | None = None
    memory_clock_megahertz: int | None = None
    sm_clock_maximum_megahertz: int | None = None

    application_sm_clock_megahertz: int | None = None
    """Clock that programs ask for when they start."""

    application_memory_clock_megahertz: int | None = None

    clock_limits: tuple[str, ...] | None = None
    """What limits the clocks at this moment, in the words of `CLOCK_LIMITS`."""

    power_limited_seconds: float | None = None
    """Seconds since the driver was loaded in which power limited the clocks."""

    thermal_limited_seconds: float | None = None
    """Seconds since the driver was loaded in which heat limited the clocks."""

    temperature_celsius: int | None = None
    power_watts: float | None = None

    power_cap_watts: float | None = None
    """Power that the board may draw."""

    power_cap_default_watts: float | None = None
    """Default power limit."""

    persistence_mode: bool | None = None
    memory_used_bytes: int | None = None

    ecc_corrected: int | None = None
    """Memory errors corrected since the driver was loaded."""

    ecc_uncorrected: int | None = None
    """Memory errors since the driver was loaded that could not be corrected."""

    remap_pending: bool | None = None
    """True if bad rows of memory wait for a reset to be replaced, or could not be replaced."""

    other_processes: tuple[GPUProcess, ...] = ()
    """Processes on the device that are not ours; they are only looked at."""

    problems: tuple[str, ...] = ()
    """Why something could not be read that the device should tell."""


class CPUState(Frozen):
    """The state of the host. Counters run since its start; compare two states for a fraction."""

    load_average: float | None = None
    """Load of the last minute: processes that run or wait."""

    total_seconds: float | None = None
    """Seconds since the start, summed over all cores of the machine."""

    busy_seconds: float | None = None
    """Seconds in which a core worked for this machine, summed likewise."""

    stolen_seconds: float | None = None
    """Seconds in which the hypervisor gave a core to others (steal), summed likewise."""

    own_seconds: float
    """CPU seconds of this program and of its children that have ended."""

    governors: tuple[str, ...] = ()
    """What chooses the frequency, each once; empty where the system does not say."""

    frequency_megahertz: float | None = None
    """Frequency at this moment, mean over cores."""

    memory_available_bytes: int
    swap_used_bytes: int


class MachineState(Frozen):
    """The machine at one moment."""

    monotonic_seconds: float
    """time.monotonic() when it was read."""

    cpu: CPUState

    gpus: tuple[GPUState, ...] = ()
    """Devices, by NVML's index; none when the run needs none."""

    problems: tuple[str, ...] = ()
    """Why devices are not among them."""


def used_by(state: MachineState, uuids: Iterable[str]) -> tuple[GPUState, ...]:
    """Return the devices of these uuids, as torch or NVML write them."""
    wanted = {uuid.removeprefix("GPU-").lower() for uuid in uuids}
    return tuple(one for one in state.gpus if one.uuid.removeprefix("GPU-").lower() in wanted)


def limits_in(mask: int) -> tuple[str, ...]:
    """Return NVML's bits in words; an unknown bit by its number."""
    bits = [1 << place for place in range(mask.bit_length()) if mask >> place & 1]
    return tuple(CLOCK_LIMITS.get(bit, f"limit_{bit:#x}") for bit in bits)


def other_process_reason(pid: int, name: str, uuid: str) -> str:
    """Return the reason for a process on a device that is not ours."""
    return f"other_process: process {pid} ({name or 'name not known'}) computes on {uuid} too"


def throttled(limits: Iterable[str]) -> tuple[str, ...]:
    """Return those of a device's limits that mean throttling."""
    return tuple(limit for limit in limits if limit in THROTTLING)

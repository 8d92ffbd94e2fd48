"""The state of the machine at one moment: clocks, temperature, power, errors, processes, load."""

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
"""Names of the reasons that limit a GPU's clocks, by their bits in NVML's mask."""


THROTTLING = ("hw_power_brake", "hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown")
"""Clock limits that no device should meet in normal work. `sw_power_cap` is not among them: many
boards reach their cap in every training run, and the cap itself is stored."""


class GPUProcess(Frozen):
    """A process that computes on a GPU."""

    pid: int
    """Process id, as NVML sees it: inside a container it can be the host's."""

    name: str = ""
    """Name of the program; empty if unknown."""

    memory_bytes: int | None = None
    """Memory of the process on the GPU in bytes; null if NVML does not state it."""


class GPUState(Frozen):
    """State of one GPU; null for values that the GPU or its driver does not report."""

    uuid: str
    """Unique id of the GPU."""

    sm_clock_megahertz: int | None = None
    memory_clock_megahertz: int | None = None
    sm_clock_maximum_megahertz: int | None = None

    application_sm_clock_megahertz: int | None = None
    """Clock requested by programs at their start, in MHz."""

    application_memory_clock_megahertz: int | None = None

    clock_limits: tuple[str, ...] | None = None
    """Names of the current limits of the clocks, as in `CLOCK_LIMITS`."""

    power_limited_seconds: float | None = None
    """Seconds since the driver was loaded in which power limited the clocks."""

    thermal_limited_seconds: float | None = None
    """Seconds since the driver was loaded in which heat limited the clocks."""

    temperature_celsius: int | None = None
    power_watts: float | None = None

    power_cap_watts: float | None = None
    """Power limit in force, in watts."""

    power_cap_default_watts: float | None = None
    """Default power limit in watts."""

    persistence_mode: bool | None = None
    memory_used_bytes: int | None = None

    ecc_corrected: int | None = None
    """Memory errors corrected since the driver was loaded."""

    ecc_uncorrected: int | None = None
    """Memory errors since the driver was loaded that could not be corrected."""

    remap_pending: bool | None = None
    """True if bad memory rows await a reset for their replacement, or cannot be replaced."""

    other_processes: tuple[GPUProcess, ...] = ()
    """Other programs' processes on the GPU; they are only read."""

    problems: tuple[str, ...] = ()
    """Reasons why values that the GPU should report could not be read."""


class CPUState(Frozen):
    """State of the host. Its counters run from the host's start; compare two states."""

    load_average: float | None = None
    """Load average of the last minute: processes that run or wait."""

    total_seconds: float | None = None
    """Seconds since the start, summed over all cores of the machine."""

    busy_seconds: float | None = None
    """Seconds in which a core was neither idle nor stolen, summed over all cores."""

    stolen_seconds: float | None = None
    """Seconds in which the hypervisor gave a core to others (steal), summed over all cores."""

    own_seconds: float
    """CPU seconds of this program and of its ended children."""

    governors: tuple[str, ...] = ()
    """Frequency governors of the cores, without duplicates; empty if unknown."""

    frequency_megahertz: float | None = None
    """Current frequency in MHz, the mean over cores."""

    memory_available_bytes: int
    swap_used_bytes: int


class MachineState(Frozen):
    """State of the machine at one moment."""

    monotonic_seconds: float
    """Value of time.monotonic() at the reading."""

    cpu: CPUState

    gpus: tuple[GPUState, ...] = ()
    """States of the GPUs, by NVML's index; empty for a run without GPUs."""

    problems: tuple[str, ...] = ()
    """Reasons why GPUs are missing from the state."""


def used_by(state: MachineState, uuids: Iterable[str]) -> tuple[GPUState, ...]:
    """Return the states of the GPUs whose uuids are given, in torch's or NVML's form of a uuid."""
    wanted = {uuid.removeprefix("GPU-").lower() for uuid in uuids}
    return tuple(gpu for gpu in state.gpus if gpu.uuid.removeprefix("GPU-").lower() in wanted)


def limits_in(mask: int) -> tuple[str, ...]:
    """Return the names of the clock limits in NVML's bit mask; an unknown bit as its number."""
    bits = [1 << place for place in range(mask.bit_length()) if mask >> place & 1]
    return tuple(CLOCK_LIMITS.get(bit, f"limit_{bit:#x}") for bit in bits)


def other_process_reason(pid: int, name: str, uuid: str) -> str:
    """Return a text: process `pid` of another program also computes on the run's GPU `uuid`."""
    return f"other_process: process {pid} ({name or 'name not known'}) computes on {uuid} too"


def throttled(limits: Iterable[str]) -> tuple[str, ...]:
    """Return the given clock limits that mean throttling, as listed in `THROTTLING`."""
    return tuple(limit for limit in limits if limit in THROTTLING)

"""Queries of NVIDIA's management library (NVML): devices by uuid, one value at a time.

Plugins import it as `accel_bench.nvml`; it may change before 1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import psutil

from accel_bench.errors import AccelBenchError
from accel_bench.machine.state import GPUProcess, limits_in, other_process_reason, throttled

__all__ = [
    "Devices",
    "GPUProcess",
    "NVMLDevice",
    "NoReadingError",
    "clock_limit_mask",
    "compute_processes",
    "devices",
    "find_device",
    "library",
    "limits_in",
    "other_process_reason",
    "read",
    "throttled",
    "visible_devices",
]

UUID_PREFIX = "GPU-"
"""Prefix of uuids in NVML, which torch omits."""


class NoReadingError(AccelBenchError):
    """NVML or a device does not respond: missing, denied or lost."""


@dataclass(frozen=True)
class NVMLDevice:
    """One device as NVML lists it."""

    index: int
    """NVML's index, which need not be CUDA's."""

    uuid: str
    """Unique id of the device, `GPU-...`."""

    bus: str
    """PCI bus id; `CUDA_DEVICE_ORDER=PCI_BUS_ID` sorts by it."""

    handle: Any

    def ask(self, question: str, *arguments: Any) -> Any:
        """Return the value of `nvmlDevice<question>`; None if device or driver do not support it.

        Raises NoReadingError when access is denied or the device does not respond.
        """
        return _call(getattr(library(), f"nvmlDevice{question}"), self.handle, *arguments)


class Devices(NamedTuple):
    """The devices that NVML lists."""

    found: tuple[NVMLDevice, ...] = ()
    """Responding devices, by NVML's index."""

    problems: tuple[str, ...] = ()
    """Reasons why other devices do not respond."""


@cache
def library() -> Any:
    """Return the bindings, initialised until the program ends.

    Opening them takes seconds if the driver keeps no state between clients, which would delay the
    first reading of every run. Raises NoReadingError.
    """
    import pynvml

    _call(pynvml.nvmlInit)
    return pynvml


def devices() -> Devices:
    """Return all devices. Raises NoReadingError when NVML itself does not respond."""
    nvml = library()
    found, problems = [], []
    for index in range(_call(nvml.nvmlDeviceGetCount) or 0):
        try:
            found.append(_device(nvml, index))
        except NoReadingError as error:
            problems.append(f"NVML's device {index}: {error}")
    return Devices(tuple(found), tuple(problems))


def find_device(among: Sequence[NVMLDevice], uuid: str) -> NVMLDevice | None:
    """Return the device of a uuid, in NVML's or torch's form; None without one."""
    wanted = uuid.removeprefix(UUID_PREFIX).lower()
    same = [one for one in among if one.uuid.removeprefix(UUID_PREFIX).lower() == wanted]
    return same[0] if wanted and same else None


def clock_limit_mask(device: NVMLDevice) -> int | None:
    """Return the limits of a device's clocks as bits, also with older drivers."""
    mask = device.ask("GetCurrentClocksEventReasons")
    mask = device.ask("GetCurrentClocksThrottleReasons") if mask is None else mask
    return None if mask is None else int(mask)


def compute_processes(device: NVMLDevice) -> tuple[GPUProcess, ...] | None:
    """Return the processes that compute on a device; None if the device does not support it."""
    found = device.ask("GetComputeRunningProcesses")
    if found is None:
        return None
    return tuple(
        GPUProcess(pid=one.pid, name=_program(one.pid), memory_bytes=one.usedGpuMemory)
        for one in found
    )


def visible_devices(
    listed: Devices, environment: Mapping[str, str]
) -> tuple[NVMLDevice, ...] | None:
    """Return the devices that CUDA shows to a process with this environment, in CUDA's order.

    None if NVML cannot tell: CUDA's own order puts the fastest first, a lost device shifts numbers,
    and an instance of a partitioned device (MIG) is no device of its own here.
    """
    by_bus = sorted(listed.found, key=lambda device: device.bus)
    ordered = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len(by_bus) == 1
    countable = ordered and not listed.problems
    entries = environment.get("CUDA_VISIBLE_DEVICES")
    if entries is None:
        return tuple(by_bus) if countable else None
    shown = []
    for entry in (entry.strip() for entry in entries.split(",")):
        if entry.startswith("MIG-") or (entry.isdigit() and not countable):
            return None
        device = _entry(by_bus, entry)
        if device is None:
            # CUDA hides what stands behind an entry that it does not know.
            break
        shown.append(device)
    return tuple(shown)


def read(function: Callable[[], Any]) -> Any:
    """Return a system-wide value from NVML; None if NVML does not respond."""
    try:
        return _call(function)
    except NoReadingError:
        return None


def _program(pid: int) -> str:
    """Return a program's name, without its arguments, which can hold secrets."""
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return ""


def _entry(by_bus: Sequence[NVMLDevice], entry: str) -> NVMLDevice | None:
    """Return the device of an item of CUDA_VISIBLE_DEVICES: a number or the start of a uuid."""
    if entry.isdigit():
        return by_bus[int(entry)] if int(entry) < len(by_bus) else None
    same = [one for one in by_bus if entry and one.uuid.startswith(entry)]
    return same[0] if len(same) == 1 else None


def _device(nvml: Any, index: int) -> NVMLDevice:
    """Return a device by its index. Raises NoReadingError for a lost or inaccessible one."""
    handle = _call(nvml.nvmlDeviceGetHandleByIndex, index)
    uuid = _call(nvml.nvmlDeviceGetUUID, handle)
    if handle is None or uuid is None:
        raise NoReadingError("it has no uuid")
    place = _call(nvml.nvmlDeviceGetPciInfo, handle)
    bus = place.busId if place is not None else f"{index:08}"
    return NVMLDevice(index, uuid, bus, handle)


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of an NVML call; None if unsupported. Raises NoReadingError otherwise."""
    import pynvml

    unknown = (
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_DEPRECATED,
    )
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if error.value in unknown:
            return None
        raise NoReadingError(_reason(pynvml, error.value, str(error))) from error


def _reason(pynvml: Any, code: int, message: str) -> str:
    """Return the description of an NVML error, with accel-bench's words before NVML's message."""
    words = {
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "NVML is missing",
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "NVML is missing",
        pynvml.NVML_ERROR_NO_PERMISSION: "NVML is denied",
        pynvml.NVML_ERROR_GPU_IS_LOST: "the device is lost",
        pynvml.NVML_ERROR_RESET_REQUIRED: "the device is lost",
        pynvml.NVML_ERROR_GPU_NOT_FOUND: "the device is lost",
    }
    return f"{words.get(code, 'NVML fails')}: {message}"

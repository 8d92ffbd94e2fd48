"""Queries of NVIDIA's management library (NVML) on GPUs; plugins import `accel_bench.nvml`.

This interface may change before 1.0.
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
    """Error for an NVML that is missing, fails or denies access, or for a lost device."""


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
        """Call `nvmlDevice<question>` with this device; return its result, or None if unsupported.

        Raises NoReadingError when access is denied or the device does not respond.
        """
        return _call(getattr(library(), f"nvmlDevice{question}"), self.handle, *arguments)


class Devices(NamedTuple):
    """The devices that NVML lists."""

    found: tuple[NVMLDevice, ...] = ()
    """Responding devices, by NVML's index."""

    problems: tuple[str, ...] = ()
    """Texts on devices that do not respond, each with the reason."""


@cache
def library() -> Any:
    """Return the module `pynvml`, with NVML initialized until the program ends.

    NVML stays open, since opening it again for each reading may take seconds. Raises NoReadingError
    if NVML cannot be opened.
    """
    import pynvml

    _call(pynvml.nvmlInit)
    return pynvml


def devices() -> Devices:
    """Return all of NVML's devices. Raises NoReadingError if NVML itself does not respond."""
    nvml = library()
    gpus, problems = [], []
    for index in range(_call(nvml.nvmlDeviceGetCount) or 0):
        try:
            gpus.append(_device(nvml, index))
        except NoReadingError as error:
            problems.append(f"NVML's device {index}: {error}")
    return Devices(tuple(gpus), tuple(problems))


def find_device(among: Sequence[NVMLDevice], uuid: str) -> NVMLDevice | None:
    """Return the device with a uuid, in NVML's or torch's form, or None if no device has it."""
    wanted = uuid.removeprefix(UUID_PREFIX).lower()
    same = [device for device in among if device.uuid.removeprefix(UUID_PREFIX).lower() == wanted]
    return same[0] if wanted and same else None


def clock_limit_mask(device: NVMLDevice) -> int | None:
    """Return NVML's bit mask of reasons that limit a device's clocks; None if unsupported."""
    mask = device.ask("GetCurrentClocksEventReasons")
    mask = device.ask("GetCurrentClocksThrottleReasons") if mask is None else mask
    return None if mask is None else int(mask)


def compute_processes(device: NVMLDevice) -> tuple[GPUProcess, ...] | None:
    """Return the processes that compute on a device; None if the device does not report them."""
    running = device.ask("GetComputeRunningProcesses")
    if running is None:
        return None
    return tuple(
        GPUProcess(pid=process.pid, name=_program(process.pid), memory_bytes=process.usedGpuMemory)
        for process in running
    )


def visible_devices(
    listed: Devices, environment: Mapping[str, str]
) -> tuple[NVMLDevice, ...] | None:
    """Return the devices in `listed` that CUDA shows in this environment, in CUDA's order.

    Returns None if NVML cannot tell the order: if CUDA sorts the devices by speed (its default), if
    a lost device shifts CUDA's indices, or if part of a partitioned device (MIG) is selected.
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
    """Return the result of `function()`, which queries NVML, or None if the query fails."""
    try:
        return _call(function)
    except NoReadingError:
        return None


def _program(pid: int) -> str:
    """Return the name of a process's program, without the arguments, which can hold secrets."""
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return ""


def _entry(by_bus: Sequence[NVMLDevice], entry: str) -> NVMLDevice | None:
    """Return the only device whose index is `entry` or whose uuid begins with it, or None."""
    if entry.isdigit():
        return by_bus[int(entry)] if int(entry) < len(by_bus) else None
    same = [device for device in by_bus if entry and device.uuid.startswith(entry)]
    return same[0] if len(same) == 1 else None


def _device(nvml: Any, index: int) -> NVMLDevice:
    """Return a device by its index. Raises NoReadingError if it is lost or inaccessible."""
    handle = _call(nvml.nvmlDeviceGetHandleByIndex, index)
    uuid = _call(nvml.nvmlDeviceGetUUID, handle)
    if handle is None or uuid is None:
        raise NoReadingError("it has no uuid")
    place = _call(nvml.nvmlDeviceGetPciInfo, handle)
    bus = place.busId if place is not None else f"{index:08}"
    return NVMLDevice(index, uuid, bus, handle)


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return an NVML function's result; None if unsupported. Raises NoReadingError for errors."""
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
    """Return an NVML error's text: its kind, such as `the device is lost`, and NVML's `message`."""
    words = {
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "NVML is missing",
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "NVML is missing",
        pynvml.NVML_ERROR_NO_PERMISSION: "NVML is denied",
        pynvml.NVML_ERROR_GPU_IS_LOST: "the device is lost",
        pynvml.NVML_ERROR_RESET_REQUIRED: "the device is lost",
        pynvml.NVML_ERROR_GPU_NOT_FOUND: "the device is lost",
    }
    return f"{words.get(code, 'NVML fails')}: {message}"

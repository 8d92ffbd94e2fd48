"""Readings of the machine's state before and after every attempt, without importing torch."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from accel_bench.machine.nvml import (
    NoReadingError,
    NVMLDevice,
    clock_limit_mask,
    compute_processes,
    devices,
)
from accel_bench.machine.state import CPUState, GPUState, MachineState, limits_in

ANSWER_SECONDS = 10.0
"""Seconds after which a driver counts as hanging, as with a lost device."""

SETTLE_SECONDS = 2.0
"""Seconds for which NVML may still list a process that has ended."""

CPU_FREQUENCIES = Path("/sys/devices/system/cpu")
"""Folder of Linux with each core's frequency and governor."""


def read_state(gpus: bool) -> MachineState:
    """Return the state of the host, and of GPUs if `gpus`, within milliseconds; never raise."""
    states, problems = _within(ANSWER_SECONDS, _read_gpus) if gpus else ((), ())
    return MachineState(
        monotonic_seconds=time.monotonic(), cpu=_read_cpu(), gpus=states, problems=problems
    )


def read_settled_state(before: MachineState | None, gpus: bool) -> MachineState:
    """Return the state after a run; wait up to 2 s for the end of GPU processes not in `before`."""
    known = {
        process.pid
        for state in (before.gpus if before else ())
        for process in state.other_processes
    }
    until = time.monotonic() + SETTLE_SECONDS
    state = read_state(gpus)
    while time.monotonic() < until and any(
        process.pid not in known for gpu in state.gpus for process in gpu.other_processes
    ):
        time.sleep(0.1)
        state = read_state(gpus)
    return state


def _read_gpus() -> tuple[tuple[GPUState, ...], tuple[str, ...]]:
    """Return the states of all responding GPUs, and texts on GPUs that do not respond."""
    try:
        listed = devices()
    except NoReadingError as error:
        return (), (str(error),)
    return tuple(_read_gpu(device) for device in listed.found), listed.problems


def _read_gpu(device: NVMLDevice) -> GPUState:
    """Return the state of one GPU, with None for each value that cannot be read."""
    import pynvml

    problems: list[str] = []

    def ask(question: str, *arguments: Any) -> Any:
        return _or_problem(problems, lambda: device.ask(question, *arguments))

    volatile = pynvml.NVML_VOLATILE_ECC
    rows = ask("GetRemappedRows")
    memory = ask("GetMemoryInfo")
    mode = ask("GetPersistenceMode")
    mask = _or_problem(problems, lambda: clock_limit_mask(device))
    running = _or_problem(problems, lambda: compute_processes(device)) or ()
    return GPUState(
        uuid=device.uuid,
        sm_clock_megahertz=ask("GetClockInfo", pynvml.NVML_CLOCK_SM),
        memory_clock_megahertz=ask("GetClockInfo", pynvml.NVML_CLOCK_MEM),
        sm_clock_maximum_megahertz=ask("GetMaxClockInfo", pynvml.NVML_CLOCK_SM),
        application_sm_clock_megahertz=ask("GetApplicationsClock", pynvml.NVML_CLOCK_SM),
        application_memory_clock_megahertz=ask("GetApplicationsClock", pynvml.NVML_CLOCK_MEM),
        clock_limits=None if mask is None else limits_in(mask),
        power_limited_seconds=_limited(ask("GetViolationStatus", pynvml.NVML_PERF_POLICY_POWER)),
        thermal_limited_seconds=_limited(
            ask("GetViolationStatus", pynvml.NVML_PERF_POLICY_THERMAL)
        ),
        temperature_celsius=ask("GetTemperature", pynvml.NVML_TEMPERATURE_GPU),
        power_watts=_watts(ask("GetPowerUsage")),
        power_cap_watts=_watts(ask("GetEnforcedPowerLimit")),
        power_cap_default_watts=_watts(ask("GetPowerManagementDefaultLimit")),
        persistence_mode=None if mode is None else bool(mode),
        memory_used_bytes=None if memory is None else memory.used,
        ecc_corrected=ask("GetTotalEccErrors", pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, volatile),
        ecc_uncorrected=ask(
            "GetTotalEccErrors", pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, volatile
        ),
        remap_pending=None if rows is None else bool(rows[2] or rows[3]),
        other_processes=tuple(process for process in running if not _is_ours(process.pid)),
        problems=tuple(dict.fromkeys(problems)),
    )


def _or_problem(problems: list[str], read: Callable[[], Any]) -> Any:
    """Return `read()`. If NVML gives no reading, add the reason to `problems` and return None."""
    try:
        return read()
    except NoReadingError as error:
        problems.append(str(error))
        return None


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _limited(violation: Any) -> float | None:
    return None if violation is None else violation.violationTime / 1e9  # in nanoseconds


def _is_ours(pid: int) -> bool:
    """Return whether a process is this process or one of its descendants."""
    try:
        return pid == os.getpid() or any(
            parent.pid == os.getpid() for parent in psutil.Process(pid).parents()
        )
    except psutil.Error:
        return False


def _read_cpu() -> CPUState:
    """Return the state of the host: load, CPU seconds, frequency and memory."""
    spent = psutil.cpu_times()
    # The kernel counts time of guests twice, as guests' and as users'.
    counted = [getattr(spent, name) for name in spent._fields if not name.startswith("guest")]
    stolen = getattr(spent, "steal", None)
    idle = spent.idle + getattr(spent, "iowait", 0.0)
    own = psutil.Process().cpu_times()
    governors = map(_read, CPU_FREQUENCIES.glob("cpu[0-9]*/cpufreq/scaling_governor"))
    return CPUState(
        load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        total_seconds=sum(counted),
        busy_seconds=sum(counted) - idle - (stolen or 0.0),
        stolen_seconds=stolen,
        own_seconds=own.user + own.system + own.children_user + own.children_system,
        governors=tuple(sorted(set(filter(None, governors)))),
        frequency_megahertz=_frequency(),
        memory_available_bytes=psutil.virtual_memory().available,
        swap_used_bytes=psutil.swap_memory().used,
    )


def _frequency() -> float | None:
    """Return the cores' mean frequency in MHz; None on some, mostly virtual, machines."""
    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError):
        return None
    return frequency.current or None if frequency else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf8").strip()
    except OSError:
        return ""


def _within(
    seconds: float, read: Callable[[], tuple[tuple[GPUState, ...], tuple[str, ...]]]
) -> tuple[tuple[GPUState, ...], tuple[str, ...]]:
    """Return the GPUs' states and problems, or only a problem if `read` takes over `seconds`."""
    results: list[tuple[tuple[GPUState, ...], tuple[str, ...]]] = []
    thread = threading.Thread(target=lambda: results.append(read()), daemon=True)
    thread.start()
    thread.join(seconds)
    if results:
        return results[0]
    return (), (f"NVML fails: no answer within {seconds:g} s",)

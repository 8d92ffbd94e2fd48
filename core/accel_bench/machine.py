"""The machine and what is installed on it, read without torch. Read, never set."""

from __future__ import annotations

import os
import platform
import shutil
import socket
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from pydantic import Field

from accel_bench.scenario.base import Frozen

RELEVANT = (
    "accel-bench",
    "accelerate",
    "numpy",
    "peft",
    "tokenizers",
    "torch",
    "transformers",
    "triton",
)
"""Distributions whose versions can change a result of any scenario."""


class GPU(Frozen):
    """One device as NVML describes it."""

    index: int
    """NVML's index."""

    name: str
    """The maker's name."""

    uuid: str
    """What tells it from every other one."""

    memory_bytes: int
    """Total memory in bytes."""

    compute_capability: tuple[int, int]
    """Major and minor."""


class Machine(Frozen):
    """What a result needs to be read later, on another machine."""

    host: str
    """Host name."""

    system: str
    """Operating system and release."""

    processor: str
    """CPU model."""

    cores: int
    """Cores that this process may use."""

    memory_bytes: int
    """Memory of the host in bytes."""

    python: str
    """Python's version."""

    versions: dict[str, str]
    """Versions of the distributions that matter."""

    driver: str | None = None
    """NVIDIA driver; null without one."""

    cuda: str | None = None
    """Newest CUDA version that the driver supports; null without one."""

    gpus: tuple[GPU, ...] = ()
    """GPUs, by index."""

    c_compiler: str | None = None
    """Path of the C compiler that would be found; null without one."""

    load_average: float | None = Field(None)
    """Load of the last minute when this was read."""

    @property
    def device(self) -> str:
        """What `resources.device: auto` means here: `cuda` when torch and a GPU can meet, else
        `cpu`."""
        torch = self.versions.get("torch", "")
        return "cuda" if self.gpus and not torch.endswith("+cpu") else "cpu"


def read_machine() -> Machine:
    """Read this machine. Takes milliseconds; imports no accelerator library."""
    driver, cuda, gpus = _read_gpus()
    return Machine(
        host=socket.gethostname(),
        system=f"{platform.system()} {platform.release()}",
        processor=_processor(),
        cores=available_cores(),
        memory_bytes=psutil.virtual_memory().total,
        python=platform.python_version(),
        versions=installed_versions(RELEVANT),
        driver=driver,
        cuda=cuda,
        gpus=gpus,
        c_compiler=_c_compiler(),
        load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def available_cores() -> int:
    """Cores that this process may run on; in a container they can be fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def installed_versions(names: tuple[str, ...]) -> dict[str, str]:
    """Versions of those distributions that are installed, from metadata alone."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    """The CPU's model name where the system says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _c_compiler() -> str | None:
    """The compiler that the environment names, else the first usual one on the path."""
    names = [os.environ.get("CC"), "cc", "gcc", "clang"]
    return next((path for name in names if name and (path := shutil.which(name))), None)


def _read_gpus() -> tuple[str | None, str | None, tuple[GPU, ...]]:
    """Ask NVML for driver, CUDA version and devices; nothing where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None, None, ()
    try:
        version = pynvml.nvmlSystemGetCudaDriverVersion()
        cuda = f"{version // 1000}.{version % 1000 // 10}"
        gpus = tuple(_read_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
        return _text(pynvml.nvmlSystemGetDriverVersion()), cuda, gpus
    finally:
        pynvml.nvmlShutdown()


def _read_gpu(pynvml: Any, index: int) -> GPU:
    """Describe one device."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    capability = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return GPU(
        index=index,
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
        compute_capability=(capability[0], capability[1]),
    )


def _text(value: bytes | str) -> str:
    """Older bindings give bytes."""
    return value.decode() if isinstance(value, bytes) else value

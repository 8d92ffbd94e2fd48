"""Description of the machine and its installed software, read without importing torch."""

from __future__ import annotations

import os
import platform
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import Field

from accel_bench.documents.base import Frozen
from accel_bench.machine.cgroup import read_cpu_limit, read_memory_group
from accel_bench.machine.libraries import known_distributions
from accel_bench.machine.nvml import NoReadingError, NVMLDevice, devices, library, read
from accel_bench.machine.provenance import distribution_version

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
"""Distributions whose versions can change the result of any scenario."""

COMPANIONS = (
    "datasets",
    "nvidia-cublas",
    "nvidia-cublas-cu12",
    "nvidia-cuda-runtime",
    "nvidia-cuda-runtime-cu12",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "safetensors",
)
"""Distributions whose versions are recorded with results, and do not change an experiment's id."""


@dataclass(frozen=True, slots=True)
class Device:
    """Device of one rank. Its `str()` is torch's name of it, such as `cuda:0`."""

    type: str
    """Torch's type of the device: `cpu`, `cuda`, `mps` ..."""

    index: int = 0
    """Index of the device on its node."""

    name: str = ""
    """Maker's name of the device."""

    uuid: str = ""
    """Unique id of the device; empty on a CPU."""

    def __str__(self) -> str:
        return "cpu" if self.type == "cpu" else f"{self.type}:{self.index}"


class GPU(Frozen):
    """A GPU, as NVML describes it."""

    index: int
    name: str

    uuid: str
    """Unique id of the GPU."""

    memory_bytes: int
    """Total memory of the GPU in bytes, or of the host if the GPU shares its memory."""

    compute_capability: tuple[int, int]
    """CUDA compute capability, major and minor."""


class Machine(Frozen):
    """Description of the machine, which is stored with every result."""

    host: str
    system: str
    processor: str

    cores: int
    """Number of cores that this process may use."""

    memory_bytes: int
    python: str

    versions: dict[str, str]
    """Versions of the distributions in `RELEVANT`, with the commit of an editable install."""

    libraries: dict[str, str] = Field(default_factory=dict)
    """Versions of libraries that only some scenarios use."""

    driver: str | None = None
    """Version of the NVIDIA driver; null without a driver."""

    cuda: str | None = None
    """Newest CUDA version that the driver supports; null without a driver."""

    gpus: tuple[GPU, ...] = ()
    """Responding GPUs, in the order of NVML's index."""

    c_compiler: str | None = None
    """Path of the C compiler on the search path; null without a compiler."""

    load_average: float | None = Field(None)
    """Load average of the last minute at the time of reading."""

    @property
    def device(self) -> str:
        """Name of the device type that `resources.device: auto` selects on this machine."""
        from accel_bench.machine.devices import best_device

        return best_device(self)


def read_machine() -> Machine:
    """Return a description of this machine, read without importing an accelerator library."""
    driver, cuda, gpus = _read_gpus()
    return Machine(
        host=socket.gethostname(),
        system=f"{platform.system()} {platform.release()}",
        processor=_processor(),
        cores=available_cores(),
        memory_bytes=_memory_bytes(),
        python=platform.python_version(),
        versions=installed_versions(RELEVANT),
        libraries=installed_versions((*COMPANIONS, *known_distributions())),
        driver=driver,
        cuda=cuda,
        gpus=gpus,
        c_compiler=find_program(os.environ.get("CC"), "cc", "gcc", "clang"),
        load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def _memory_bytes() -> int:
    group, total = read_memory_group(), psutil.virtual_memory().total
    limit = group.limit_bytes if group else None
    return total if limit is None else min(total, limit)


def available_memory() -> int:
    """Return the host's available memory in bytes, at most a container's memory limit."""
    return min(_memory_bytes(), psutil.virtual_memory().available)


def available_cores() -> int:
    """Return the number of cores that this process may use, within a container's limit.

    A fraction of a core is dropped: one thread above the limit makes all threads wait.
    """
    here = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if here else os.cpu_count() or 1
    limit = read_cpu_limit()
    return cores if limit is None else min(cores, max(1, int(limit)))


def installed_versions(names: tuple[str, ...]) -> dict[str, str]:
    """Return installed distributions' versions by name, with the commits of editable installs."""
    versions = {name: distribution_version(name) for name in names}
    return {name: version for name, version in versions.items() if version}


def _processor() -> str:
    """Return the CPU's model name, or the machine type, such as `x86_64`, if it is unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def find_program(*names: str | None) -> str | None:
    """Return the path of the first of these programs on the search path, or None without any."""
    return next((path for name in names if name and (path := shutil.which(name))), None)


def _read_gpus() -> tuple[str | None, str | None, tuple[GPU, ...]]:
    """Return driver version, CUDA version and GPUs by NVML; None, None and () without a driver.

    A lost or inaccessible GPU is left out, as CUDA does.
    """
    try:
        nvml, listed = library(), devices()
    except NoReadingError:
        return None, None, ()
    version = read(nvml.nvmlSystemGetCudaDriverVersion)
    cuda = None if version is None else f"{version // 1000}.{version % 1000 // 10}"
    driver = read(nvml.nvmlSystemGetDriverVersion)
    gpus = tuple(gpu for device in listed.found if (gpu := _read_gpu(device)) is not None)
    return driver, cuda, gpus


def _read_gpu(device: NVMLDevice) -> GPU | None:
    """Return the description of one GPU, or None if the GPU does not respond."""
    try:
        name = device.ask("GetName")
        memory = device.ask("GetMemoryInfo")
        capability = device.ask("GetCudaComputeCapability")
    except NoReadingError:
        return None
    if name is None or capability is None:
        return None
    return GPU(
        index=device.index,
        name=name,
        uuid=device.uuid,
        memory_bytes=psutil.virtual_memory().total if memory is None else memory.total,
        compute_capability=(capability[0], capability[1]),
    )

"""Examine the machine and what is installed on it, without importing anything heavy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from importlib import metadata
from pathlib import Path

from accel_bench.documents.base import Frozen
from accel_bench.machine.info import GPU, Machine, find_program, installed_versions
from accel_bench.machine.libraries import known_distributions
from accel_bench.machine.probe import read_state
from accel_bench.machine.state import GPUState
from accel_bench.plugins.registry import overview
from accel_bench.scenario.experiment import SCHEMA_VERSION
from accel_bench_doctor.conflicts import Conflict, changes_of_every_stack, incompatibilities

COMPILERS = {"C": ("CC", "cc", "gcc", "clang"), "C++": ("CXX", "c++", "g++", "clang++")}
"""For each language, the variable that names its compiler, and the usual names."""

ANSWER_SECONDS = 10.0
"""Limit for a compiler's answer; it prints its version in milliseconds."""

_BUILD = re.compile(r"""^(cuda|hip)\b[^=\n]*=\s*['"](.+)['"]""", re.MULTILINE)


class TorchBuild(Frozen):
    """What the installed torch is built for, by its files; null where they do not name it."""

    version: str
    """Its version; what follows a `+` names the build."""

    cuda: str | None = None
    """Version of CUDA; null for a build without."""

    rocm: str | None = None
    """Version of ROCm; null for a build without."""


class Compiler(Frozen):
    """A compiler on the path."""

    path: str

    version: str
    """The first line that it prints of itself; empty when it prints nothing."""


class Disk(Frozen):
    """The free space of one folder."""

    path: str
    """The folder, or the nearest one above it that there is."""

    free_bytes: int | None
    """Free bytes for this user; null when that cannot be read."""


class PluginReport(Frozen):
    """An installed plugin as its distribution's metadata describe it."""

    name: str
    distribution: str
    version: str

    unusable: tuple[str, ...]
    """Why it cannot be used here; empty when nothing is known against it."""


class DeviceReport(Frozen):
    """One GPU."""

    gpu: GPU

    state: GPUState | None
    """Null when it does not answer."""


class Examination(Frozen):
    """The result of `accel-bench doctor`."""

    schema_version: int = SCHEMA_VERSION
    machine: Machine

    torch: TorchBuild | None
    """Null where torch is not installed."""

    libraries: dict[str, str]
    """Versions of the accelerator libraries that are installed."""

    plugins: tuple[PluginReport, ...]

    devices: tuple[DeviceReport, ...]
    """GPUs that answer, by index."""

    device_problems: tuple[str, ...]
    """Why there is no driver, or why devices do not answer."""

    compilers: dict[str, Compiler]
    """By language: C, C++, CUDA; without those that are not there."""

    memory_available_bytes: int
    """Memory of the host that programs can have now."""

    disks: dict[str, Disk]
    """Room by what it is for: results, temporary files, models."""

    incompatible: tuple[Conflict, ...]

    changes_every_stack: tuple[Conflict, ...]
    """What changes plain stacks too, since it is installed."""


def examine(machine: Machine, results: Path) -> Examination:
    """Examine this machine; `results` is where results would be kept. Nothing heavy is imported."""
    state = read_state(gpus=True)
    torch = torch_build()
    states = {one.uuid: one for one in state.gpus}
    return Examination(
        machine=machine,
        torch=torch,
        libraries=installed_versions(known_distributions()),
        plugins=_plugins(),
        devices=tuple(DeviceReport(gpu=gpu, state=states.get(gpu.uuid)) for gpu in machine.gpus),
        device_problems=state.problems,
        compilers=find_compilers(),
        memory_available_bytes=state.cpu.memory_available_bytes,
        disks=_disks(results),
        incompatible=incompatibilities(machine, torch.cuda if torch else None),
        changes_every_stack=changes_of_every_stack(),
    )


def torch_build() -> TorchBuild | None:
    """Return what the installed torch is built for, from its `version.py`, which is not run."""
    try:
        found = metadata.distribution("torch")
        text = Path(str(found.locate_file("torch/version.py"))).read_text(encoding="utf8")
    except metadata.PackageNotFoundError:
        return None
    except (OSError, ValueError):
        text = ""
    versions = dict(_BUILD.findall(text))
    return TorchBuild(version=found.version, cuda=versions.get("cuda"), rocm=versions.get("hip"))


def find_compilers() -> dict[str, Compiler]:
    """Return the compilers on the path."""
    paths = {
        language: find_program(os.environ.get(variable), *names)
        for language, (variable, *names) in COMPILERS.items()
    }
    home = os.environ.get("CUDA_HOME")
    paths["CUDA"] = find_program(home and str(Path(home) / "bin" / "nvcc"), "nvcc")
    return {
        language: Compiler(path=path, version=_version_of(path))
        for language, path in paths.items()
        if path
    }


def _version_of(program: str) -> str:
    try:
        done = subprocess.run(
            [program, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = done.stdout.splitlines()
    # nvcc's first line is its name.
    return next((line for line in lines if "release" in line), lines[0] if lines else "").strip()


def _plugins() -> tuple[PluginReport, ...]:
    """List plugins from metadata alone; `plugins check` imports them."""
    return tuple(
        PluginReport(
            name=row["name"],
            distribution=row["distribution"],
            version=row["version"],
            unusable=tuple(row["unmet"]),
        )
        for row in overview()
        if row["installed"]
    )


def _disks(results: Path) -> dict[str, Disk]:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    models = os.environ.get("HF_HOME") or str(Path(cache) / "huggingface")
    folders = {"results": results, "temporary": Path(tempfile.gettempdir()), "models": Path(models)}
    return {what: _disk(path) for what, path in folders.items()}


def _disk(path: Path) -> Disk:
    """Return the free space where a folder is, or would be made."""
    there = path.absolute()
    try:
        there = next(folder for folder in (there, *there.parents) if folder.exists())
        return Disk(path=str(there), free_bytes=shutil.disk_usage(there).free)
    except OSError:
        return Disk(path=str(there), free_bytes=None)

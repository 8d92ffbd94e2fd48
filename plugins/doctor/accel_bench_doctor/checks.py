"""Checks of the machine and its installed packages, without heavy imports."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from accel_bench.documents.base import Frozen
from accel_bench.machine.info import GPU, RELEVANT, Machine, find_program, installed_versions
from accel_bench.machine.libraries import LibraryEffect, known_distributions, read_libraries
from accel_bench.machine.probe import read_state
from accel_bench.machine.provenance import distribution_version
from accel_bench.machine.state import GPUState
from accel_bench.plugins.registry import overview, unmet_requirement
from accel_bench.scenario.experiment import SCHEMA_VERSION


class Conflict(Frozen):
    """A known incompatibility that applies to this machine."""

    found: dict[str, str]
    """Versions of the involved packages, by name; empty for packages not installed."""

    because: str
    """Effect of the incompatibility, in a sentence."""

    do: str
    """Recommended remedy for the incompatibility."""


def incompatibilities(machine: Machine, torch_cuda: str | None) -> tuple[Conflict, ...]:
    """Return the known and the detected conflicts of the installed packages.

    They are conflicts of accel-bench's list, packages whose requirements are unmet, and a torch
    build that cannot use the GPUs. `torch_cuda` is the CUDA version of the torch build; None for a
    build without CUDA.
    """
    return (
        *_conflicts(read_libraries().incompatible),
        *_ruled_out(dict.fromkeys((*RELEVANT, *known_distributions()))),
        *_wrong_build(machine, torch_cuda),
    )


def changes_of_every_stack() -> tuple[Conflict, ...]:
    """Return a conflict for each installed package that changes all stacks just by being installed.

    Such packages work, but what they change is part of every measurement here.
    """
    return tuple(_conflicts(read_libraries().changes_every_stack))


def _conflicts(rules: Iterable[LibraryEffect]) -> Iterator[Conflict]:
    """Yield a conflict for each rule that applies to the installed packages and their versions."""
    for rule in rules:
        lacks = not rule.missing or any(map(unmet_requirement, rule.missing))
        if lacks and not any(map(unmet_requirement, rule.when)):
            names = [Requirement(text).name for text in (*rule.when, *rule.missing)]
            versions = {name: distribution_version(name) for name in names}
            yield Conflict(found=versions, because=rule.because, do=rule.do)


def _ruled_out(names: Iterable[str]) -> Iterator[Conflict]:
    """Yield a conflict for each named package with unmet requirements, like `pip check`.

    Packages that are not installed are skipped.
    """
    for name in names:
        try:
            requires = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:
            continue
        if unmet := list(filter(None, map(unmet_requirement, requires))):
            version = distribution_version(name)
            yield Conflict(
                found={name: version},
                because=f"{name} {version} requires something else: {'; '.join(unmet)}",
                do=f"pip install --upgrade {name} with versions that fit, in an environment of "
                "its own",
            )


def _wrong_build(machine: Machine, torch_cuda: str | None) -> Iterator[Conflict]:
    """Yield a conflict if the torch build cannot use this machine's GPUs.

    `torch_cuda` is the build's CUDA version; None for a build without CUDA.
    """
    if not machine.gpus:
        return
    torch = machine.versions.get("torch", "")
    versions = {"torch": torch, "driver": machine.driver or ""}
    if torch.endswith("+cpu"):
        yield Conflict(
            found=versions,
            because=f"{machine.gpus[0].name} is here, and torch is built for CPUs only",
            do="install a torch that is built for CUDA: see https://pytorch.org/get-started",
        )
    elif torch_cuda and machine.cuda and _major(torch_cuda) > _major(machine.cuda):
        yield Conflict(
            found=versions,
            because=f"torch is built for CUDA {torch_cuda}, the driver knows up to {machine.cuda}",
            do=f"upgrade the driver, or install a torch that is built for CUDA {machine.cuda}",
        )


def _major(version: str) -> int:
    # A driver runs every minor version of its CUDA.
    first = version.partition(".")[0]
    return int(first) if first.isdigit() else 0


COMPILERS = {"C": ("CC", "cc", "gcc", "clang"), "C++": ("CXX", "c++", "g++", "clang++")}
"""Environment variable of each language's compiler, then the usual names of the program."""

ANSWER_SECONDS = 10.0
"""Timeout in seconds of a compiler's version query, which takes milliseconds."""

_BUILD = re.compile(r"""^(cuda|hip)\b[^=\n]*=\s*['"](.+)['"]""", re.MULTILINE)


class TorchBuild(Frozen):
    """Build of the installed torch, read from its files; a field is null if they omit it."""

    version: str
    """Version of torch; a suffix after `+` names the build."""

    cuda: str | None = None
    """CUDA version; null for a build without CUDA."""

    rocm: str | None = None
    """ROCm version; null for a build without ROCm."""


class Compiler(Frozen):
    """A compiler found on PATH."""

    path: str

    version: str
    """First line of the compiler's version output; empty without such output."""


class Disk(Frozen):
    """The free space of one folder."""

    path: str
    """Path of the folder, or of its nearest existing parent."""

    free_bytes: int | None
    """Free bytes for this user; null if unreadable."""


class PluginReport(Frozen):
    """An installed plugin, described by its distribution's metadata without importing it."""

    name: str
    distribution: str
    version: str

    unusable: tuple[str, ...]
    """Reasons why the plugin cannot be used here; empty if none is known."""


class DeviceReport(Frozen):
    """One GPU and its present state."""

    gpu: GPU

    state: GPUState | None
    """Clocks, memory and load; null if the GPU does not answer."""


class Examination(Frozen):
    """The JSON document of `accel-bench doctor`."""

    schema_version: int = SCHEMA_VERSION
    machine: Machine

    torch: TorchBuild | None
    """Build of torch; null if torch is not installed."""

    libraries: dict[str, str]
    """Versions of the installed accelerator libraries."""

    plugins: tuple[PluginReport, ...]

    devices: tuple[DeviceReport, ...]
    """GPUs of this machine, in order of their index."""

    device_problems: tuple[str, ...]
    """Reasons why the driver or devices cannot be read."""

    compilers: dict[str, Compiler]
    """Compilers by language: C, C++, CUDA; missing ones are left out."""

    memory_available_bytes: int
    """Available host memory in bytes."""

    disks: dict[str, Disk]
    """Free disk space by purpose: results, temporary files, models."""

    incompatible: tuple[Conflict, ...]

    changes_every_stack: tuple[Conflict, ...]
    """Installed packages that change every stack."""


def examine(machine: Machine, results: Path) -> Examination:
    """Return what is installed on this machine, its devices, free space and conflicts.

    Nothing heavy is imported. `results` is the results folder, whose disk is examined.
    """
    state = read_state(gpus=True)
    torch = torch_build()
    states = {gpu.uuid: gpu for gpu in state.gpus}
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
    """Return the build of the installed torch, parsed from its `version.py`; None without torch."""
    try:
        torch = metadata.distribution("torch")
        text = Path(str(torch.locate_file("torch/version.py"))).read_text(encoding="utf8")
    except metadata.PackageNotFoundError:
        return None
    except (OSError, ValueError):
        text = ""
    versions = dict(_BUILD.findall(text))
    return TorchBuild(version=torch.version, cuda=versions.get("cuda"), rocm=versions.get("hip"))


def find_compilers() -> dict[str, Compiler]:
    """Return the compilers found on this machine by language: C, C++, CUDA."""
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
    """Return the installed plugins, described by their metadata without importing them."""
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
    """Return the free space of a folder, which may not exist yet."""
    there = path.absolute()
    try:
        there = next(folder for folder in (there, *there.parents) if folder.exists())
        return Disk(path=str(there), free_bytes=shutil.disk_usage(there).free)
    except OSError:
        return Disk(path=str(there), free_bytes=None)

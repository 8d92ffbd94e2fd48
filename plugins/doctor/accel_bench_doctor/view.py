"""Tables of `doctor`: versions, conflicts, and the noise floor."""

from __future__ import annotations

import os
from collections.abc import Iterator

from accel_bench.analysis.wording import count, percent
from accel_bench.report.table import Report, Section, listed
from accel_bench.scenario.environment import ABOUT_WAITING, OPENMP_DEFAULTS
from accel_bench_doctor.checks import Conflict, DeviceReport, Examination, TorchBuild
from accel_bench_doctor.noise_floor import NoiseFloor


def examination_report(examined: Examination) -> Report:
    """Return the report of the machine: a table of its parts, and sections of conflicts."""
    sections = [Section(tables=[listed(("what", "found"), _rows(examined))])]
    for title, conflicts in (
        ("Does not go together:", examined.incompatible),
        ("Changes every stack, since it is installed:", examined.changes_every_stack),
    ):
        if conflicts:
            notes = [line for conflict in conflicts for line in _lines(conflict)]
            sections.append(Section(title=title, notes=notes))
    if not examined.incompatible:
        sections.append(Section(notes=["No known incompatibility."]))
    return Report(sections)


def noise_report(floor: NoiseFloor) -> Report:
    """Return the report of the noise floor: its conclusion, spread, load and problems."""
    notes = [*floor.load, *floor.problems]
    if floor.spread is not None:
        notes.insert(0, f"{percent(floor.spread)} spread of the step time across processes")
    return Report([Section(headline=f"Noise: {floor.words}", notes=notes)])


def _lines(conflict: Conflict) -> Iterator[str]:
    names = ", ".join(f"{name} {version or '-'}" for name, version in conflict.found.items())
    yield f"  {names}: {conflict.because}"
    yield f"    {conflict.do}"


def _rows(examined: Examination) -> Iterator[tuple[str, str]]:
    """Yield the rows of the machine's table: a name, and what was found."""
    machine = examined.machine
    load = "" if machine.load_average is None else f", load {machine.load_average:.1f}"
    yield "system", f"{machine.system}, {count(machine.cores, 'core')} of {machine.processor}{load}"
    available = _size(examined.memory_available_bytes)
    yield "memory", f"{available} of {_size(machine.memory_bytes)} free"
    for what, disk in examined.disks.items():
        yield f"disk for {what}", f"{_size(disk.free_bytes)} free in {disk.path}"
    yield "OpenMP threads", _waiting()
    yield "python", machine.python
    yield from {**machine.versions, **examined.libraries, "torch": _torch(examined.torch)}.items()
    yield "driver", f"{machine.driver}, CUDA up to {machine.cuda}" if machine.driver else "none"
    yield from (("devices", problem) for problem in examined.device_problems)
    for device in examined.devices:
        yield f"device {device.gpu.index}", _device(device)
    for language in ("C", "C++", "CUDA"):
        compiler = examined.compilers.get(language)
        text = f"{compiler.path}: {compiler.version}" if compiler else "none"
        yield f"{language} compiler", text
    yield "plugins", f"{count(len(examined.plugins), 'plugin')} installed"
    for plugin in examined.plugins:
        if plugin.unusable:
            yield f"  {plugin.name}", f"cannot be used: {'; '.join(plugin.unusable)}"


def _waiting() -> str:
    """Return a phrase on how OpenMP threads wait in runs, and how to change this."""
    chosen = [f"{name}={os.environ[name]}" for name in ABOUT_WAITING if name in os.environ]
    if chosen:
        return f"wait as the environment says: {', '.join(chosen)}"
    default = ", ".join(f"{name}={value}" for name, value in OPENMP_DEFAULTS.items())
    return (
        f"sleep while they wait ({default}), since spinning ones take cores from other work and "
        "from one another; for an idle machine set environment.OMP_WAIT_POLICY: active"
    )


def _torch(build: TorchBuild | None) -> str:
    if build is None:
        return "not installed"
    versions = {"CUDA": build.cuda, "ROCm": build.rocm}
    built = [f"for {name} {version}" for name, version in versions.items() if version]
    return f"{build.version}, built {built[0] if built else 'without a GPU'}"


def _device(device: DeviceReport) -> str:
    """Return a one-line description of a GPU: its name, memory, limits and processes."""
    gpu, state = device.gpu, device.state
    parts = [gpu.name, "compute capability {}.{}".format(*gpu.compute_capability)]
    if state is None:
        return ", ".join([*parts, _size(gpu.memory_bytes), "does not answer"])
    used = f"{_size(state.memory_used_bytes)} of {_size(gpu.memory_bytes)} used"
    parts += [used, *(f"slowed down by {limit}" for limit in state.clock_limits or ())]
    parts += [
        f"process {process.pid} ({process.name or '?'}) computes on it"
        for process in state.other_processes
    ]
    return ", ".join([*parts, *state.problems])


def _size(count: int | None) -> str:
    return "an unknown number of GiB" if count is None else f"{count / 2**30:.1f} GiB"

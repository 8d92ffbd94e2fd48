"""`accel-bench doctor`: what is here, what does not go together, and the noise of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from accel_bench.cli import options
from accel_bench.cli.output import Format

if TYPE_CHECKING:
    from accel_bench.doctor.checks import DeviceReport, Examination
    from accel_bench.doctor.conflicts import Conflict
    from accel_bench.doctor.noise_floor import NoiseFloor
    from accel_bench.machine.info import Machine


def doctor(
    noise: Annotated[
        bool, typer.Option(help="Measure the noise floor: about a minute on an idle machine.")
    ] = True,
    results: options.Results = options.DEFAULT_RESULTS,
    output: Format = "table",
) -> None:
    """Print what is installed here, what of it does not go together, and how noisy the machine is.

    Ends with 1 when a known incompatibility is found, or when not even a tiny run works.
    """
    from accel_bench.cli.output import print_json
    from accel_bench.doctor.checks import examine
    from accel_bench.machine.info import read_machine

    machine = read_machine()
    found = examine(machine, results)
    if output == "table":
        _print(found)
    floor = _measure(machine) if noise else None
    if output == "json":
        measured = floor.model_dump(mode="json") if floor else None
        print_json({**found.model_dump(mode="json"), "noise": measured})
    elif floor:
        _print_noise(floor)
    well = not found.incompatible and (floor is None or floor.ratio is not None)
    raise typer.Exit(0 if well else 1)


def _measure(machine: Machine) -> NoiseFloor:
    """Measure the noise floor; where that fails, return why in its place."""
    import sys
    from contextlib import redirect_stdout

    from accel_bench.cli.progress import make_reporter
    from accel_bench.doctor.noise_floor import DURATION, measure_noise_floor, not_measured
    from accel_bench.errors import AccelBenchError

    typer.echo(f"Measuring the noise of this machine: {DURATION}; --no-noise omits it.", err=True)
    reporter = make_reporter(quiet=False)
    try:
        with redirect_stdout(sys.stderr):  # what a plugin prints is no part of the document
            return measure_noise_floor(machine, reporter)
    except (AccelBenchError, OSError) as error:
        return not_measured(str(error))
    finally:
        reporter.close()


def _print(found: Examination) -> None:
    """Print the examination for people."""
    from accel_bench.cli.output import print_table

    print_table(("what", "found"), list(_rows(found)))
    typer.echo("")
    _print_findings("Does not go together", found.incompatible)
    if not found.incompatible:
        typer.echo("No known incompatibility.")
    _print_findings("Changes every stack, since it is installed", found.changes_every_stack)


def _rows(found: Examination) -> Iterator[tuple[str, str]]:
    """Return the rows of the table."""
    machine = found.machine
    load = "" if machine.load_average is None else f", load {machine.load_average:.1f}"
    yield "system", f"{machine.system}, {machine.cores} cores of {machine.processor}{load}"
    yield "memory", f"{_size(found.memory_available_bytes)} of {_size(machine.memory_bytes)} free"
    for what, disk in found.disks.items():
        yield f"disk for {what}", f"{_size(disk.free_bytes)} free in {disk.path}"
    yield "python", machine.python
    for name, version in {**machine.versions, **found.libraries}.items():
        yield name, f"{version}{_build(found) if name == 'torch' else ''}"
    if found.torch is None:
        yield "torch", "not installed"
    yield "driver", f"{machine.driver}, CUDA up to {machine.cuda}" if machine.driver else "none"
    for problem in found.device_problems:
        yield "", problem
    for device in found.devices:
        yield f"device {device.gpu.index}", _device(device)
    for language in ("C", "C++", "CUDA"):
        compiler = found.compilers.get(language)
        text = f"{compiler.path}: {compiler.version}" if compiler else "none"
        yield f"{language} compiler", text
    yield "plugins", f"{len(found.plugins)} installed"
    for plugin in found.plugins:
        if plugin.unusable:
            yield f"  {plugin.name}", f"cannot be used: {'; '.join(plugin.unusable)}"


def _build(found: Examination) -> str:
    """Return what torch is built for."""
    if found.torch is None:
        return ""
    versions = {"CUDA": found.torch.cuda, "ROCm": found.torch.rocm}
    built = [f"{name} {version}" for name, version in versions.items() if version]
    return f", built for {built[0]}" if built else ", built without a GPU"


def _device(device: DeviceReport) -> str:
    """Return one GPU in a line."""
    gpu, state = device.gpu, device.state
    parts = [gpu.name, "compute capability {}.{}".format(*gpu.compute_capability)]
    if state is None:
        return ", ".join([*parts, _size(gpu.memory_bytes), "does not answer"])
    used = f"{_size(state.memory_used_bytes)} of {_size(gpu.memory_bytes)} used"
    parts += [used, *(f"held down by {limit}" for limit in state.clock_limits or ())]
    parts += [
        f"process {one.pid} ({one.name or '?'}) computes on it" for one in state.other_processes
    ]
    return ", ".join([*parts, *state.problems])


def _print_findings(title: str, findings: Sequence[Conflict]) -> None:
    if findings:
        typer.echo(f"{title}:")
    for finding in findings:
        names = ", ".join(f"{name} {version or '-'}" for name, version in finding.found.items())
        typer.echo(f"  {names}: {finding.because}\n    {finding.do}")


def _print_noise(floor: NoiseFloor) -> None:
    typer.echo(f"\nNoise: {floor.words}")
    if floor.spread is not None:
        from accel_bench.analysis.wording import percent

        typer.echo(f"  {percent(floor.spread)} spread of the step time across processes")
    for line in (*floor.load, *floor.problems):
        typer.echo(f"  {line}")


def _size(count: int | None) -> str:
    return "an unknown number of GiB" if count is None else f"{count / 2**30:.1f} GiB"

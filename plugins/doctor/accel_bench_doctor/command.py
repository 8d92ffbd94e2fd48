"""`accel-bench doctor`: print versions, conflicts and the noise floor of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from accel_bench.cli import options
from accel_bench.cli.output import OutputFormat, print_aside, print_json, print_report

if TYPE_CHECKING:
    from accel_bench.machine.info import Machine
    from accel_bench_doctor.noise_floor import NoiseFloor


def doctor(
    noise: Annotated[
        bool, typer.Option(help="Measure the noise floor: about a minute on an idle machine.")
    ] = True,
    results: options.ResultsOption = options.DEFAULT_RESULTS,
    output: OutputFormat = "table",
) -> None:
    """Print what is installed here, what of it does not go together, and how noisy the machine is.

    Ends with 1 when a known incompatibility is found, or when not even a tiny run works.
    """
    from accel_bench.documents.redaction import Redactor
    from accel_bench.machine.info import read_machine
    from accel_bench_doctor.checks import examine
    from accel_bench_doctor.view import examination_report, noise_report

    machine = read_machine()
    redactor = Redactor.of_this_process()
    on_server = "://" in results  # files of its runs are in the usual folder
    folder = Path(options.DEFAULT_RESULTS if on_server else results)
    examined = redactor.redact_model(examine(machine, folder))
    if output == "table":
        print_report(examination_report(examined), output)
    floor = redactor.redact_model(_measure(machine)) if noise else None
    if output == "json":
        measured = floor.model_dump(mode="json") if floor else None
        print_json({**examined.model_dump(mode="json"), "noise": measured})
    elif floor:
        typer.echo("")
        print_report(noise_report(floor), output)
    well = not examined.incompatible and (floor is None or floor.ratio is not None)
    raise typer.Exit(0 if well else 1)


def _measure(machine: Machine) -> NoiseFloor:
    """Measure and return the machine's noise floor; if measuring fails, return only the problem."""
    import sys
    from contextlib import redirect_stdout

    from accel_bench.cli.progress import make_reporter
    from accel_bench.errors import AccelBenchError
    from accel_bench_doctor import noise_floor

    print_aside("Measuring the noise of this machine; --no-noise omits it.")
    reporter = make_reporter(quiet=False)
    try:
        with redirect_stdout(sys.stderr):  # what a plugin prints is no part of the document
            plan = noise_floor.plan_noise_floor(machine)
            return noise_floor.measure_noise_floor(plan, machine, reporter)
    except (AccelBenchError, OSError) as error:
        return noise_floor.NoiseFloor(words="not measured", problems=(str(error),))
    finally:
        reporter.close()

"""`accel-bench export`: write a stack as a configuration of another training program."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from accel_bench.cli.options import DEFAULT_RESULTS, Names, ResultsOption, takes

if TYPE_CHECKING:
    from accel_bench.scenario.models import Scenario, Stack


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Command-line options of `accel-bench export`."""

    stack: Annotated[
        str, typer.Argument(help="A stack: of the scenario, a named one, a plugin, or A+B.")
    ]
    to: Annotated[
        str,
        typer.Option(
            metavar="PROGRAM",
            help="trl, trainer, accelerate, axolotl, llama-factory, torchtune or torchtitan.",
        ),
    ]
    scenario: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the work of this scenario too."),
    ] = None
    run: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Write the work of this stored run too."),
    ] = None
    set_: Annotated[
        Names, typer.Option("--set", metavar="KEY=VALUE", help="Change a dotted key.")
    ] = None
    results: ResultsOption = DEFAULT_RESULTS
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to; else stdout.")
    ] = None


@takes(ExportOptions)
def export(options: ExportOptions) -> None:
    """Write a stack as a configuration of another training program.

    With a scenario or a stored run, the configuration holds the work too: model, adapter, data,
    batch, learning rate, steps. Settings that the program lacks are listed in comments.
    """
    from accel_bench.cli.output import print_text
    from accel_bench.documents.escaping import printable
    from accel_bench.documents.files import write_atomically
    from accel_bench.errors import ScenarioError
    from accel_bench_export.configuration import configuration
    from accel_bench_export.writing import text_of

    stack, scenario, remarks = _chosen(options)
    config = configuration(options.to, stack, scenario, remarks)
    suffix = "py" if config.trainer.form == "python" else "yaml"
    text = text_of(config, str(options.output or f"{options.to}.{suffix}"))
    if options.output is None:
        print_text(printable(text), end="")
        return
    if options.output.exists():
        raise ScenarioError(f"{options.output} is already there; nothing is overwritten")
    write_atomically(options.output, [text])
    typer.echo(printable(f"written: {options.output}"))


def _chosen(options: ExportOptions) -> tuple[Stack, Scenario | None, list[str]]:
    """Return the stack to export, its scenario or None, and remarks for the file's comments.

    Raises ScenarioError if the options exclude each other or name no such stack, and StoreError for
    an unknown run.
    """
    from accel_bench.errors import ScenarioError
    from accel_bench_export.stacks import stack_alone, stack_in_scenario, stored_stack

    if options.run is not None and options.scenario is not None:
        raise ScenarioError("--run and --scenario both name a work; give one of them")
    if options.run is not None:
        return (*stored_stack(options.stack, options.run, options.results), [])
    if options.scenario is not None:
        return stack_in_scenario(options.stack, options.scenario, options.set_ or [])
    if options.set_:
        raise ScenarioError("--set changes the work of a scenario: name it by --scenario")
    return stack_alone(options.stack), None, []

"""`accel-bench scenarios count`: what one training step does, and what has changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from accel_bench.cli.options import Names, takes
from accel_bench.cli.output import AnyFormat


@dataclass(frozen=True, kw_only=True)
class CountOptions:
    """Options of `count`."""

    scenario: Annotated[
        str, typer.Argument(help="A scenario file, or a shipped scenario's name.")
    ] = "quickstart"
    stack: Annotated[str | None, typer.Option(help="The stack to count; else the baseline.")] = None
    against: Annotated[
        str | None,
        typer.Option(
            metavar="REF",
            help="The reference: another stack, or a file that --save wrote. Differences read REF "
            "-> counted stack; exit code 1 if anything rose.",
        ),
    ] = None
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the ledger to a JSON file.")
    ] = None
    plugin: Annotated[Names, typer.Option(help="Add a stack with this plugin; A+B for both.")] = (
        None
    )
    set_: Annotated[
        Names, typer.Option("--set", metavar="KEY=VALUE", help="Change a dotted key.")
    ] = None
    device: Annotated[
        str | None, typer.Option(help="Where to run: auto, cpu, cuda, rocm, mps or another.")
    ] = None
    timeout: Annotated[float | None, typer.Option(min=0.001, help="Seconds for a stack.")] = None
    force: Annotated[
        bool, typer.Option("--force", help="Run what needs more memory than there is.")
    ] = False
    oversubscribe: Annotated[
        bool, typer.Option("--oversubscribe", help="Allow more processes than cores.")
    ] = False
    allow_env: Annotated[
        bool, typer.Option("--allow-env", help="Let scenarios set any environment variable.")
    ] = False
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Let models bring code of their own.")
    ] = False
    output: AnyFormat = "table"


@takes(CountOptions)
def count(options: CountOptions) -> int:
    """Count what one training step does: operations, bytes, copies, synchronisations, breaks.

    Nothing is timed, so two runs of the same code differ by nothing, on any machine. With --against
    the difference is printed, from the reference to the stack, with the module and the source line
    of everything that rose.
    """
    from accel_bench_profile.count_request import run_count

    return run_count(options)

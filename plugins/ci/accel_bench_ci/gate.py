"""`accel-bench gate`: does a stack pass, being no slower than another?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from accel_bench.cli.options import MeasureOptions, takes


@dataclass(frozen=True, kw_only=True)
class GateOptions(MeasureOptions):
    """Options of `gate`."""

    scenario: Annotated[str, typer.Argument(help="A scenario file, or a shipped scenario's name.")]
    stack: Annotated[str, typer.Option(help="The stack that is to pass.")]
    against: Annotated[
        str | None, typer.Option(help="The stack to compare it with; else the baseline.")
    ] = None
    floor: Annotated[
        str, typer.Option(metavar="FRACTION", help="Slow-down that is allowed: 1% or 0.01.")
    ] = "1%"
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Rounds at the first look; else the scenario's, at least 5."),
    ] = None
    max_rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Add rounds until it is settled, but no more than this in all."),
    ] = None
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write JUnit XML for a CI system too.")
    ] = None
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write Markdown for a summary too.")
    ] = None


@takes(GateOptions)
def gate(options: GateOptions) -> int:
    """Run two stacks side by side and fail when one is slower than the other by more than a floor.

    Exits with 0 when the stack passes, 1 when a run failed or is invalid, 4 when it is slower or
    its loss is different, 5 when that is open, saying how many more rounds would settle it.

    Each look at the rounds, the first and those after --max-rounds or --resume has added some,
    spends its fraction of the error rates, so that looking often raises no more false alarms: at
    most 0.5 %.

    What looks slower is run again in fresh processes, with rounds and looks of its own beyond
    --max-rounds; only what those confirm by themselves, as 0.5 % of false alarms are, is a
    regression.
    """
    from accel_bench_ci.gate_request import run_gate

    return run_gate(options)
